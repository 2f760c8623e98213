"""The options that set constants of policies: a flag for each common one, and ``--set`` for any."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from cyclopts import Group, Parameter

from fedcascade.checks import require, require_known
from fedcascade.cli.options import split_assignments
from fedcascade.federation.policies import POLICIES, Policy, get_policy
from fedcascade.learning.confidence import Theory

MAIN_POLICY = POLICIES["fedc3ucb-h"]  # whose values --help shows in brackets
_GROUP = Group(
    "Constants",
    sort_key=3,
    help="Where one is not given, the policy's own; in brackets that of the paper's system. 'fedcascade policies' "
    "lists the constants of all systems.",
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
        """Return policies with the constants that were given; each ignores the flags of constants that it lacks.

        ``adapt`` changes the parts of a policy before.
        """
        policies = [adapt(get_policy(name)) for name in names]
        flags = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "set_"}
        texts = {name: text for name, text in flags.items() if text is not None}
        assignments = _resolve_assignments(split_assignments("set", self.set_), policies)
        return [_set_constants(policy, texts | assignments[policy.name]) for policy in policies]


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


def _set_constants(policy: Policy, texts: Mapping[str, str]) -> Policy:
    """Return the policy with those of the constants that it has."""
    if texts.get("beta") == "theory":
        policy = replace(policy, confidence=Theory(alpha_c=policy.constants().get("alpha_c", 1.0)))
    elif "beta" in texts:
        policy = policy.with_beta(0.0)
    has_noise = "noise" in policy.constants()
    require(
        has_noise or not {"noise", "delta"} & texts.keys(),
        f"noise and delta belong to --beta theory, {policy.name} has a constant beta",
    )
    own = policy.constants()
    values = {name: policy.parse_constant(name, text) for name, text in texts.items() if name in own}
    return policy.with_constants(**values)
