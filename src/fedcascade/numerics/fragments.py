"""Fragments: functions that are compiled only as parts of their compiled callers.

Numba optimises every function that a compiled one calls, writes machine code for it and wraps it for Python. It then
repeats that for the caller, into which the function was inlined. For the hundred short functions of the engine's loops
this took more than half of the time to the first round. A fragment is lowered to LLVM IR only; its caller does the rest
once (decision 12).
"""

# mypy: disable-error-code="no-untyped-call"
# (numba's functions have no types)

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

from fedcascade.numerics.code_cache import open_cache


class FragmentLibrary(JITCodeLibrary):
    """LLVM IR of a function and of its callees, without optimisation and machine code."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class FragmentLowering(NativeLowering):
    """Lowering of a function into a ``FragmentLibrary``."""

    _name = "fragment_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = FragmentLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        # Numba looks up a function's code by a built-in function as its entry; this one is never called.
        entry: Any = [].append
        lowered = state["cr"]
        state.targetctx.insert_user_function(entry, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


class FragmentCompiler(CompilerBase):
    """Numba's compiler up to LLVM's optimiser."""

    def define_pipelines(self) -> list[Any]:
        passes = PassManager("fragment")
        for step, description in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            passes.add_pass(FragmentLowering if step is NativeLowering else step, description)
        passes.finalize()
        return [passes]


class FragmentDispatcher(CPUDispatcher):
    """A function that is compiled and cached for calls from Python, and a fragment in compiled code."""

    def __init__(
        self,
        py_func: Any,
        locals: Any = None,  # noqa: A002 (numba's name)
        targetoptions: Any = None,
        pipeline_class: Any = Compiler,
    ) -> None:
        options = targetoptions or {}
        super().__init__(py_func, locals or {}, options, pipeline_class)
        bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        self._fragment = CPUDispatcher(py_func, {}, options | bare, FragmentCompiler)

    def enable_caching(self) -> None:
        """Cache the code for calls from Python; a fragment is cached with its callers."""
        self._cache = open_cache(self.py_func)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return self._fragment.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        return self._fragment.get_overload(sig)
