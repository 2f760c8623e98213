"""The options that set constants of policies: a flag for each common one, and ``--set`` for any."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from cyclopts import Group, Parameter

from fedcascade.checks import require_known, split_assignments
from fedcascade.federation.policies import DEFAULT_POLICY, POLICIES, Policy, get_policy
from fedcascade.learning.confidence import Theory

MAIN_POLICY = POLICIES[DEFAULT_POLICY]  # whose values --help shows in brackets
_GROUP = Group(
    "Constants",
    sort_key=3,
    help=f"Where one is not given, the policy's own; in brackets that of {DEFAULT_POLICY}. 'fedcascade policies' lists "
    "the constants of all systems.",
)
_SET_HELP = (
    "Set any constant, also of a plug-in's policy: name=value for all policies that have it, policy.name=value "
    "for one. Repeatable."
)


def _constant(name: str, addition: str = "") -> Parameter:
    """Describe the flag of a constant by the description that the constant has in a policy."""
    owners = [policy for policy in (MAIN_POLICY, *POLICIES.values()) if name in policy.constants()]
    description = next(entry for entry in owners[0].describe_constants() if entry.name == name)
    is_main = owners[0] is MAIN_POLICY
    names = "" if is_main else f"{', '.join(policy.name for policy in owners)}: "
    words = f"; {description.range.words}" if description.range else ""
    value = f" [{description.value:g}]" if is_main and isinstance(description.value, float) else ""
    sentence = f"{names}{description.meaning}{words}{addition}.{value}"
    return Parameter(help=sentence[0].upper() + sentence[1:] if is_main else sentence)


@Parameter(name="*", group=_GROUP, show_default=False, negative="")
@dataclass(frozen=True, kw_only=True)
class ConstantOptions:
    """Constants of policies as text; None leaves the policy's own."""

    lambda_: Annotated[str | None, _constant("lambda_")] = None
    alpha_c: Annotated[str | None, _constant("alpha_c")] = None
    alpha_d: Annotated[str | None, _constant("alpha_d")] = None
    beta: Annotated[str | None, _constant("beta", ", or 'theory' for the formula of Lemma 1")] = None
    p_scale: Annotated[str | None, _constant("p_scale")] = None
    noise: Annotated[str | None, _constant("noise", "; also with --beta theory")] = None
    delta: Annotated[str | None, _constant("delta", "; also with --beta theory")] = None
    gamma_u: Annotated[str | None, _constant("gamma_u")] = None
    gamma_d: Annotated[str | None, _constant("gamma_d")] = None
    budget: Annotated[str | None, _constant("budget")] = None
    alpha_2: Annotated[str | None, _constant("alpha_2")] = None
    local_servers: Annotated[str | None, _constant("local_servers")] = None
    order: Annotated[str | None, _constant("order")] = None
    set_: Annotated[list[str], Parameter(help=_SET_HELP)] = field(default_factory=list)

    def select_policies(
        self, names: Sequence[str], adapt: Callable[[Policy], Policy] = lambda policy: policy
    ) -> list[Policy]:
        """Return policies with those of the given constants that each has; one that none of them has is refused.

        ``adapt`` changes the parts of a policy before.
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
    """Return for each policy the texts of its constants; policy.name=value counts more than name=value."""
    resolved: dict[str, dict[str, str]] = {policy.name: {} for policy in policies}
    for target, text in sorted(assignments.items(), key=lambda item: "." in item[0]):
        policy_name, _, typed_name = target.rpartition(".")
        if policy_name:
            require_known("policy of this command", policy_name, resolved)
        owners = [policy for policy in policies if policy_name in ("", policy.name)]
        # Names as people type them, each with its field; every policy can be given a beta.
        fields = {policy.name: (*policy.constants(), "beta", "noise", "delta") for policy in owners}
        names = {owner: {field.rstrip("_"): field for field in owned} for owner, owned in fields.items()}
        require_known("constant", typed_name, {name for policy_names in names.values() for name in policy_names})
        for policy in owners:
            if typed_name in names[policy.name]:
                resolved[policy.name][names[policy.name][typed_name]] = text
    return resolved


def _choose_drift(policy: Policy, assignments: Mapping[str, str]) -> Policy:
    """Return the policy with the drift that was assigned to it: change detection has constants of its own."""
    chosen = [assignments[name] for name in (f"{policy.name}.drift", "drift") if name in assignments]
    return policy.with_drift({"drift": chosen[0]}) if chosen else policy


def _choose_confidence(policy: Policy, texts: Mapping[str, str]) -> Policy:
    """Return the policy with the kind of beta that was given, if one was: Lemma 1's, or a constant."""
    if texts.get("beta") == "theory":
        return replace(policy, confidence=Theory(alpha_c=policy.constants().get("alpha_c", 1.0)))
    return policy.with_beta(0.0) if "beta" in texts else policy


def _require_owner(name: str, policies: Sequence[Policy]) -> None:
    """Refuse a constant that none of the policies has, and say which ones have it."""
    if any(name in policy.constants() for policy in policies):
        return
    owners = [policy.name for policy in POLICIES.values() if name in policy.constants()]
    owners += ["--beta theory"] if name in ("noise", "delta") else []
    chosen = ", ".join(policy.name for policy in policies)
    raise ValueError(f"{name.rstrip('_')} is no constant of {chosen}: it belongs to {', '.join(owners)}")


def _set_constants(policy: Policy, texts: Mapping[str, str]) -> Policy:
    """Return the policy with those of the constants that it has."""
    if texts.get("beta") == "theory":
        texts = {name: text for name, text in texts.items() if name != "beta"}
    own = policy.constants()
    values = {name: policy.parse_constant(name, text) for name, text in texts.items() if name in own}
    return policy.with_constants(**values)
