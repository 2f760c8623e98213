"""The options that set constants of policies: a flag for each common one, and ``--set`` for any."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from cyclopts import Group, Parameter

from fedcascade.checks import require_known, split_assignments
from fedcascade.federation.policies import DEFAULT_POLICY, POLICIES, Policy, get_policy
from fedcascade.learning.confidence import Theory

MAIN_POLICY = POLICIES[DEFAULT_POLICY]  # --help shows its values in brackets
_GROUP = Group(
    "Constants",
    sort_key=3,
    help=f"By default the policy's own; in brackets the value of {DEFAULT_POLICY}. 'fedcascade policies' lists "
    "the constants of all policies.",
)
_SET_HELP = (
    "Set any constant, also of a plug-in: name=value for all policies that have it, policy.name=value for one. "
    "Repeatable."
)


def _constant(name: str, addition: str = "") -> Parameter:
    """Make the flag of a constant from its description in a policy."""
    owners = [policy for policy in (MAIN_POLICY, *POLICIES.values()) if name in policy.constants()]
    description = next(entry for entry in owners[0].describe_constants() if entry.name == name)
    is_main = owners[0] is MAIN_POLICY
    names = "" if is_main else f"{', '.join(policy.name for policy in owners)}: "
    words = f"; {description.range.words}" if description.range else ""
    value = f" [{description.value:g}]" if is_main and isinstance(description.value, float) else ""
    sentence = f"{names}{description.meaning}{words}{addition}.{value}"
    sentence = sentence[0].upper() + sentence[1:] if is_main else sentence
    # Text until a policy parses it; the type is for --help.
    return Parameter(help=sentence, converter=lambda _type, tokens: tokens[0].value)


@Parameter(name="*", group=_GROUP, show_default=False, negative="")
@dataclass(frozen=True, kw_only=True)
class ConstantOptions:
    """Constants of policies, as text whatever their type; None leaves the policy's own."""

    lambda_: Annotated[float | None, _constant("lambda_")] = None
    alpha_c: Annotated[float | None, _constant("alpha_c")] = None
    alpha_d: Annotated[float | None, _constant("alpha_d")] = None
    beta: Annotated[float | None, _constant("beta", ", or 'theory' for the formula of Lemma 1")] = None
    p_scale: Annotated[float | None, _constant("p_scale")] = None
    noise: Annotated[float | None, _constant("noise", "; also with --beta theory")] = None
    delta: Annotated[float | None, _constant("delta", "; also with --beta theory")] = None
    gamma_u: Annotated[float | None, _constant("gamma_u")] = None
    gamma_d: Annotated[float | None, _constant("gamma_d")] = None
    budget: Annotated[float | None, _constant("budget")] = None
    alpha_2: Annotated[float | None, _constant("alpha_2")] = None
    local_servers: Annotated[int | None, _constant("local_servers")] = None
    order: Annotated[str | None, _constant("order")] = None
    set_: Annotated[list[str], Parameter(help=_SET_HELP, env_var="FEDCASCADE_SET")] = field(default_factory=list)

    def select_policies(
        self, names: Sequence[str], adapt: Callable[[Policy], Policy] = lambda policy: policy
    ) -> list[Policy]:
        """Return policies with the given constants; refuse a constant that no policy has.

        ``adapt`` changes the parts of a policy first.
        """
        assigned = split_assignments("set", self.set_)
        policies = [_choose_drift(adapt(get_policy(name)), assigned) for name in names]
        flags = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "set_"}
        texts = {name: text for name, text in flags.items() if text is not None}
        assignments = _resolve_assignments(assigned, policies)
        given = {name: texts | own for name, own in assignments.items()}
        chosen = [_choose_confidence(policy, given[policy.name]) for policy in policies]
        for name in dict.fromkeys(name for texts in given.values() for name in texts if name != "beta"):
            _require_owner(name, [policy for policy in chosen if name in given[policy.name]])
        return [_set_constants(policy, given[policy.name]) for policy in chosen]


def _resolve_assignments(assignments: Mapping[str, str], policies: Sequence[Policy]) -> dict[str, dict[str, str]]:
    """Return the texts of each policy's constants; policy.name=value overrides name=value."""
    resolved: dict[str, dict[str, str]] = {policy.name: {} for policy in policies}
    for target, text in sorted(assignments.items(), key=lambda item: "." in item[0]):
        policy_name, _, typed_name = target.rpartition(".")
        if policy_name:
            require_known("policy of this command", policy_name, resolved)
        owners = [policy for policy in policies if policy_name in ("", policy.name)]
        # Typed names and their fields; every policy takes a beta.
        fields = {policy.name: (*policy.constants(), "beta", "noise", "delta") for policy in owners}
        names = {owner: {field.rstrip("_"): field for field in owned} for owner, owned in fields.items()}
        require_known("constant", typed_name, {name for policy_names in names.values() for name in policy_names})
        for policy in owners:
            if typed_name in names[policy.name]:
                resolved[policy.name][names[policy.name][typed_name]] = text
    return resolved


def _choose_drift(policy: Policy, assignments: Mapping[str, str]) -> Policy:
    """Return the policy with the assigned kind of drift, which adds the constants of change detection."""
    chosen = [assignments[name] for name in (f"{policy.name}.drift", "drift") if name in assignments]
    return policy.with_drift({"drift": chosen[0]}) if chosen else policy


def _choose_confidence(policy: Policy, texts: Mapping[str, str]) -> Policy:
    """Return the policy with the given kind of beta: Lemma 1's, or a constant."""
    if texts.get("beta") == "theory":
        return replace(policy, confidence=Theory(alpha_c=policy.constants().get("alpha_c", 1.0)))
    return policy.with_beta(0.0) if "beta" in texts else policy


def _require_owner(name: str, policies: Sequence[Policy]) -> None:
    """Refuse a constant that no given policy has, and name the policies that have it."""
    if any(name in policy.constants() for policy in policies):
        return
    owners = [policy.name for policy in POLICIES.values() if name in policy.constants()]
    owners += ["--beta theory"] if name in ("noise", "delta") else []
    chosen = ", ".join(policy.name for policy in policies)
    raise ValueError(f"{name.rstrip('_')} is no constant of {chosen}: it belongs to {', '.join(owners)}")


def _set_constants(policy: Policy, texts: Mapping[str, str]) -> Policy:
    if texts.get("beta") == "theory":
        texts = {name: text for name, text in texts.items() if name != "beta"}
    own = policy.constants()
    values = {name: policy.parse_constant(name, text) for name, text in texts.items() if name in own}
    return policy.with_constants(**values)
