"""The command line: ``fedcascade policies``, and the commands of the other modules.

A command's module is imported when the command is called, so that ``fedcascade --help`` is fast.
"""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from fedcascade import __version__
from fedcascade.cli.options import Json

if TYPE_CHECKING:
    from fedcascade.federation.policies import Policy

app = App(
    name="fedcascade",
    help="Recommend ranked lists, learn from clicks on each user's device, and discover which users are alike.",
    help_format="plaintext",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # ``main`` reports what was saved
)


SIMULATE = Group("Simulate", sort_key=0)
Name = Annotated[str | None, Parameter(help="Show this policy alone.", show_default=False)]


@app.command(group=SIMULATE)
def policies(name: Name = None, /, *, json_: Json = False) -> None:
    """List all policies, or show one: its row of the paper's Table 1, its parts and its constants."""
    from fedcascade.cli import terminal
    from fedcascade.federation.policies import get_policy, load_policies

    rows = list(load_policies().values()) if name is None else [get_policy(name)]
    if json_:
        print(json.dumps([policy.describe() | {"descriptions": _describe_constants(policy)} for policy in rows]))
        return
    described = terminal.make_parts_table(rows), terminal.make_constants_table(rows)
    terminal.show(*terminal.make_policies_tables(rows), *described)


def _describe_constants(policy: "Policy") -> dict[str, dict[str, str]]:
    """Return meaning, symbol and range of each constant; those of a plug-in may be empty."""
    return {
        each.name: {"meaning": each.meaning, "symbol": each.symbol, "range": each.range.words if each.range else ""}
        for each in policy.describe_constants()
    }


_LAZY_COMMANDS = {  # group: name: module, description, arguments of an example
    "Simulate": {
        "run": ("simulate", "Simulate policies in an environment and compare them.", "--policy fedind --seeds 5"),
        "reproduce": ("experiments", "Run the paper's whole evaluation and write a report.", "--quick"),
        "experiment": ("experiments", "Run a plan of experiments in parallel.", "plan.toml --out results/mine"),
        "report": ("experiments", "Write the report of a results folder.", "results/paper"),
        "theory": ("theory", "Print the bounds of the paper's Theorem 1 as numbers.", "--users 40 --rounds 1e6"),
    },
    "Data and logs": {
        "fit": ("evaluate", "Learn from a log of lists, for a warm start.", "log.parquet --out warm.npz"),
        "evaluate": ("evaluate", "Estimate the reward of policies from a log of lists.", "log.parquet --policy fedind"),
        "data": ("data", "Fetch ratings; describe ratings and logs of lists.", "describe ratings.csv"),
    },
    "Serve": {
        "serve": ("service", "Run a server for agents.", "--store sqlite:///fedcascade.db --dimension 20"),
        "live": ("live", "Start a server with simulated users and open its dashboard.", "--drift"),
        "enroll": ("service", "Make one-time enrolment tokens for agents.", "--url http://127.0.0.1:8777 --count 3"),
        "swarm": ("service", "Run agents with simulated users against a server.", "--users 40 --rounds 20000"),
    },
    "Operate a server": {
        "revoke": ("service", "Refuse further uploads of an agent.", "7"),
        "forget": ("service", "Remove an agent and its uploads.", "7"),
        "pause": ("service", "Pause exchanges: agents go on alone.", "--url http://127.0.0.1:8777"),
        "resume": ("service", "Resume paused exchanges.", "--url http://127.0.0.1:8777"),
        "agents": ("agents", "List the agents of a server.", "--state silent --limit 20"),
        "enrolment-key": ("agents", "Make or revoke a key that creates enrolment tokens.", "shop --per-hour 5000"),
        "rotate-token": ("agents", "Replace the operator's token while servers run.", "--operator-token new.token"),
        "verify": ("store", "Check the integrity of a store.", "sqlite:///fedcascade.db"),
        "audit": ("store", "Print the audit log of a store.", "sqlite:///fedcascade.db"),
        "export": ("store", "Print all that a store holds of an agent.", "7 --store sqlite:///fedcascade.db"),
        "upgrade": ("store", "Migrate a store to this version, or check that it can be.", "sqlite:///my.db --check"),
        "backup": ("store", "Write a store to a backup file.", "sqlite:///fedcascade.db monday.backup"),
        "restore": ("store", "Read a backup into a new store.", "monday.backup sqlite:///fedcascade.db"),
    },
    "Develop": {
        "doctor": ("doctor", "Check the installation: libraries, extras, GPU, plug-ins.", "--check"),
        "warm": ("warm", "Compile all code now rather than on first use.", "--policy population"),
    },
}
for _place, (_title, _commands) in enumerate(_LAZY_COMMANDS.items()):
    _group = Group(_title, sort_key=_place) if _place else SIMULATE
    for _name, (_module, _description, _arguments) in _commands.items():
        _help = f"{_description}\n\nExample: fedcascade {_name} {_arguments}"
        app.command(f"fedcascade.cli.{_module}:{_name.replace('-', '_')}", name=_name, help=_help, group=_group)
app["--help"].group = app["--version"].group = Group("Options", sort_key=9)


_SLOW_TO_LOAD = ("run", "live", "swarm", "warm")  # numba alone takes a second to import
_QUIET = {"--json", "--help", "-h"}


def _announce_start(arguments: Sequence[str]) -> None:
    """Print a line before slow imports."""
    if arguments and arguments[0] in _SLOW_TO_LOAD and not _QUIET & set(arguments):
        print(f"fedcascade {arguments[0]}: getting ready", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input is one line on stderr and exit code 2."""
    try:
        if arguments is None:
            _announce_start(sys.argv[1:])
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"fedcascade: {message}", file=sys.stderr)
            app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or ())
        _refuse(f"'{words}' belongs to no option: write a value after its option, as in --policy fedind; see --help")
    except (ValueError, ImportError, CycloptsError) as error:
        _refuse(str(error))
    except BrokenPipeError:  # the reader of our output has gone, as in `fedcascade policies | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ConnectionError as error:
        _refuse(f"cannot reach the server at {error}")
    except OSError as error:
        _refuse(f"cannot use '{error.filename}': {error.strerror}" if error.filename else str(error))
    except (OverflowError, MemoryError) as error:
        _refuse(f"a number is too large: {error}; give a smaller one")
    except KeyboardInterrupt as error:
        print("fedcascade: interrupted", *error.args, sep=": ", file=sys.stderr)
        sys.exit(130)


def _refuse(reason: str) -> NoReturn:
    """Print an error in one line on stderr and exit with code 2."""
    print("fedcascade:", *reason.split(), file=sys.stderr)
    sys.exit(2)
