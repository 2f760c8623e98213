"""The command line: ``fedcascade policies``, and the commands of neighbouring modules.

A command's module is imported when the command is called, so that ``fedcascade --help`` answers at once.
"""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from cyclopts import App, CycloptsError, UnusedCliTokensError

from fedcascade import __version__
from fedcascade.cli.options import Json

if TYPE_CHECKING:
    from fedcascade.federation.policies import Policy

app = App(
    name="fedcascade",
    help="Recommend ranked lists, learn from the clicks next to each user, find out who is alike.",
    help_format="plaintext",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # ``main`` says what was kept
)


@app.command
def policies(*, json_: Json = False) -> None:
    """List the systems that can be run: the paper's Table 1, the parts that each is made of, and their constants."""
    from fedcascade.cli import terminal
    from fedcascade.federation.policies import load_policies

    rows = list(load_policies().values())
    if json_:
        print(json.dumps([policy.describe() | {"descriptions": _describe_constants(policy)} for policy in rows]))
        return
    described = terminal.make_parts_table(rows), terminal.make_constants_table(rows)
    terminal.show(*terminal.make_policies_tables(rows), *described)


def _describe_constants(policy: "Policy") -> dict[str, dict[str, str]]:
    """Return meaning, symbol and range of each constant; a plug-in need not describe its own."""
    return {
        each.name: {"meaning": each.meaning, "symbol": each.symbol, "range": each.range.words if each.range else ""}
        for each in policy.describe_constants()
    }


_LAZY_COMMANDS = {  # name: module, and the line of --help, which imports no module
    "run": ("simulate", "Simulate one or several systems in an environment, and compare them."),
    "demo": ("experiments", "Run the paper's evaluation at its full length, twice, and write a report."),
    "doctor": ("doctor", "Print what this installation has, plug-ins included, what it lacks, and what is broken."),
    "reproduce": ("experiments", "Run the paper's whole evaluation and write a report."),
    "experiment": ("experiments", "Run a whole plan, in parallel."),
    "report": ("experiments", "Write the tables and figures of a results folder."),
    "theory": ("theory", "Print what the paper's Theorem 1 promises, in numbers."),
    "fit": ("evaluate", "Learn from a log, for a warm start."),
    "evaluate": ("evaluate", "Estimate from a log what other systems would have earned."),
    "data": ("data", "Fetch and describe files of ratings, describe logs."),
    "serve": ("service", "Run a server for agents."),
    "live": ("live", "Watch it at work: a server, simulated users, and a page that shows both."),
    "enroll": ("service", "Make one-time enrolment tokens for agents."),
    "revoke": ("service", "Let an agent speak no more."),
    "forget": ("service", "Remove an agent and everything that it uploaded."),
    "agents": ("agents", "List the agents of a server."),
    "rotate-token": ("agents", "Replace the operator's token while servers run."),
    "verify": ("store", "Check that a store is what was written."),
    "audit": ("store", "Print who did what to a store, when."),
    "backup": ("store", "Write all of a store to one file."),
    "restore": ("store", "Read a backup into a new store."),
    "warm": ("warm", "Compile everything ahead, so that nothing waits for a compiler later."),
    "swarm": ("service", "Let real agents with simulated users play against a real server."),
}
for _name, (_module, _help) in _LAZY_COMMANDS.items():
    app.command(f"fedcascade.cli.{_module}:{_name.replace('-', '_')}", name=_name, help=_help)


_SLOW_TO_LOAD = ("run", "live", "swarm", "warm")  # numba alone takes a second to import
_QUIET = {"--json", "--help", "-h"}


def _say_at_once(arguments: Sequence[str]) -> None:
    """Print a line before anything is loaded, so that nobody wonders whether a command has begun."""
    if arguments and arguments[0] in _SLOW_TO_LOAD and not _QUIET & set(arguments):
        print(f"fedcascade {arguments[0]}: getting ready", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input is one line on stderr and exit code 2."""
    try:
        if arguments is None:
            _say_at_once(sys.argv[1:])
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"fedcascade: {message}", file=sys.stderr)
            app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or ())
        _refuse(f"'{words}' belongs to no option: a value follows its option, as in --policy fedind; see --help")
    except (ValueError, ImportError, CycloptsError) as error:
        _refuse(str(error))
    except BrokenPipeError:  # the reader of our output has gone, as in `fedcascade policies | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ConnectionError as error:
        _refuse(f"cannot reach the server at {error}")
    except OSError as error:  # of a file or folder that cannot be read or written
        _refuse(f"cannot use '{error.filename}': {error.strerror}" if error.filename else str(error))
    except (OverflowError, MemoryError) as error:
        _refuse(f"a number is too large: {error}; give a smaller one")
    except KeyboardInterrupt as error:
        print("fedcascade: interrupted", *error.args, sep=": ", file=sys.stderr)
        sys.exit(130)


def _refuse(reason: str) -> NoReturn:
    """Say in one line on stderr what was wrong, and end with exit code 2."""
    print("fedcascade:", *reason.split(), file=sys.stderr)
    sys.exit(2)
