"""Writing machine code: loops, vectors, fused multiply-adds, by way of LLVM.

A `Kernel` is a function of one argument, the frame: a table of pointers to the tensors of a step. Shapes are known when
a kernel is written, so that every stride and every count is a constant in it.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import llvmlite.binding as llvm
import torch
from llvmlite import ir

INDEX = ir.IntType(64)
POINTER = ir.PointerType()
KINDS = {torch.float32: ir.FloatType(), torch.float64: ir.DoubleType(), torch.int32: ir.IntType(32), torch.int64: INDEX}
SUFFIX = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32", torch.int64: "i64"}
BYTES = {torch.float32: 4, torch.float64: 8, torch.int32: 4, torch.int64: 8}

Value = Any  # a value of LLVM's: llvmlite has no types for them
Terms = Sequence[tuple[Value, int]]
"""An address within a tensor: the sum of index times stride."""


class Unsupported(Exception):
    """A step has something in it that no kernel is written for."""


@dataclass(frozen=True)
class Processor:
    """What the vectors of this processor are like."""

    lanes: int  # floats in a vector
    registers: int

    @property
    def cells(self) -> int:
        """How many sums to keep in registers at once, leaving room for what is multiplied."""
        return self.registers - 8 if self.registers > 16 else 12


@cache
def processor() -> Processor:
    """The processor we run on."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return Processor(16, 32)
    if features.get("avx2") and features.get("fma"):
        return Processor(8, 16)
    if platform.machine() in ("aarch64", "arm64"):
        return Processor(4, 32)
    raise Unsupported("no kernels for this processor")


class Program:
    """Kernels that run one after another, once for each batch."""

    def __init__(self) -> None:
        self.module = ir.Module()
        self._kernels: list[ir.Function] = []

    @contextmanager
    def kernel(self) -> Iterator[Kernel]:
        """A new kernel, to be run after those written before."""
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [POINTER]), f"kernel{len(self._kernels)}")
        function.linkage = "internal"
        function.attributes.add("noinline")
        writer = Kernel(self.module, function)
        yield writer
        writer.end()
        self._kernels.append(function)

    def compile(self, advance: dict[int, int]) -> Callable[[ctypes.Array, int], None]:
        """(frame, batches) -> None: all kernels for each batch; `advance`: bytes that a slot moves on by after each."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, INDEX])
        function = ir.Function(self.module, kind, "run")
        frame, batches = function.args
        builder = ir.IRBuilder(function.append_basic_block())
        body, end = function.append_basic_block(), function.append_basic_block()
        builder.branch(body)
        start, builder = builder.block, ir.IRBuilder(body)
        done = builder.phi(INDEX)
        done.add_incoming(INDEX(0), start)
        for one in self._kernels:
            builder.call(one, [frame])
        for slot, step in advance.items():
            place = builder.gep(frame, [INDEX(slot)], source_etype=POINTER)
            moved = builder.gep(builder.load(place, typ=POINTER), [INDEX(step)], source_etype=ir.IntType(8))
            builder.store(moved, place)
        following = builder.add(done, INDEX(1))
        done.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, batches), body, end)
        ir.IRBuilder(end).ret_void()
        return machine_code(str(self.module))


@cache
def player() -> Callable[[Any, int], None]:
    """(table, count) -> None: calls function(frame, times) for each row of a table of those three.

    What is to be done no times is left out.
    """
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, INDEX]), "run")
    kernel = Kernel(module, function)
    table, count = function.args
    with kernel.range(INDEX(0), count) as row:
        what, frame, times = (kernel.scalar(table, kernel.at([(row, 3)], i), torch.int64) for i in range(3))
        with kernel.builder.if_then(kernel.builder.icmp_signed(">", times, INDEX(0))):
            called = kernel.builder.inttoptr(what, function.function_type.as_pointer())
            kernel.builder.call(called, [kernel.builder.inttoptr(frame, POINTER), times])
    kernel.end()
    return machine_code(str(module))


def address(function: Any) -> int:
    """Where a function begins, for such a table."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@lru_cache(maxsize=64)
def machine_code(text: str) -> Callable[[ctypes.Array, int], None]:
    """The function `run` of a module, ready to be called."""
    machine = _machine()
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False  # we did what pays
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("run"))
    run.engine = engine  # type: ignore[attr-defined]  # the code lives as long as its engine
    return run


def _machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        reloc="default",
        codemodel="jitdefault",
    )


class Cell:
    """A variable; LLVM keeps it in a register."""

    def __init__(self, kernel: Kernel, value: Value) -> None:
        self._kernel = kernel
        self._place = kernel.entry.alloca(value.type)
        self._kind = value.type
        self.set(value)

    def set(self, value: Value) -> None:
        self._kernel.builder.store(value, self._place)

    def get(self) -> Value:
        return self._kernel.builder.load(self._place, typ=self._kind)


class Kernel:
    """A function that is being written."""

    def __init__(self, module: ir.Module, function: ir.Function) -> None:
        self.module, self.function = module, function
        self.entry = ir.IRBuilder(function.append_basic_block())  # variables and pointers; ends where the body begins
        self._body = function.append_basic_block()
        self.builder = ir.IRBuilder(self._body)
        self._pointers: dict[tuple[int, int], Value] = {}

    def end(self) -> None:
        self.entry.branch(self._body)
        self.builder.ret_void()

    def pointer(self, slot: int, offset: int) -> Value:
        """The address in a slot of the frame, moved on by some bytes."""
        if (slot, offset) not in self._pointers:
            frame = self.function.args[0]
            base = self.entry.load(self.entry.gep(frame, [INDEX(slot)], source_etype=POINTER), typ=POINTER)
            self._pointers[slot, offset] = self.entry.gep(base, [INDEX(offset)], source_etype=ir.IntType(8))
        return self._pointers[slot, offset]

    @contextmanager
    def loop(self, stop: int, step: int = 1) -> Iterator[Value]:
        """0, step, ... while below stop; no loop at all where there is only one turn."""
        if stop <= 0:
            raise Unsupported("something empty")
        if stop <= step:
            yield INDEX(0)
            return
        counter = Cell(self, INDEX(0))
        body, end = self.function.append_basic_block(), self.function.append_basic_block()
        self.builder.branch(body)
        self.builder.position_at_end(body)
        index = counter.get()
        yield index
        following = self.builder.add(index, INDEX(step))
        counter.set(following)
        self.builder.cbranch(self.builder.icmp_signed("<", following, INDEX(stop)), body, end)
        self.builder.position_at_end(end)

    @contextmanager
    def range(self, start: Value, stop: Value, step: int = 1) -> Iterator[Value]:
        """start, start + step, ... while below stop, both known only when the kernel runs."""
        counter = Cell(self, start)
        test, body, end = (self.function.append_basic_block() for _ in range(3))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        index = counter.get()
        self.builder.cbranch(self.builder.icmp_signed("<", index, stop), body, end)
        self.builder.position_at_end(body)
        yield index
        counter.set(self.builder.add(index, INDEX(step)))
        self.builder.branch(test)
        self.builder.position_at_end(end)

    @contextmanager
    def bits(self, word: Value) -> Iterator[Value]:
        """The places of the bits that are set in an integer, lowest first."""
        left = Cell(self, word)
        test, body, end = (self.function.append_basic_block() for _ in range(3))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        now = left.get()
        self.builder.cbranch(self.builder.icmp_unsigned("!=", now, word.type(0)), body, end)
        self.builder.position_at_end(body)
        place = self.builder.cttz(now, ir.IntType(1)(1))
        yield self.builder.zext(place, INDEX)
        left.set(self.builder.and_(now, self.builder.sub(now, word.type(1))))
        self.builder.branch(test)
        self.builder.position_at_end(end)

    # -- memory

    def at(self, terms: Terms, offset: int = 0) -> Value:
        """The sum of index times stride, and an offset."""
        total: Value = INDEX(offset)
        for index, stride in terms:
            if stride:
                total = self.builder.add(total, self.builder.mul(index, INDEX(stride)))
        return total

    def load(self, pointer: Value, index: Value, lanes: int, dtype: torch.dtype = torch.float32, of: int = 0) -> Value:
        """Neighbouring elements, as a vector; as one of `of` lanes, if given, the others zero."""
        place = self.builder.gep(pointer, [index], source_etype=KINDS[dtype])
        whole = of or rounded(lanes)
        kind = ir.VectorType(KINDS[dtype], whole)
        if whole == lanes:
            return self.builder.load(place, typ=kind, align=BYTES[dtype])
        name = f"llvm.masked.load.v{whole}{SUFFIX[dtype]}.p0"
        mask = ir.VectorType(ir.IntType(1), whole)
        function = self._intrinsic(name, ir.FunctionType(kind, [POINTER, ir.IntType(32), mask, kind]))
        arguments = [place, ir.IntType(32)(BYTES[dtype]), _mask(lanes, whole), self.number(0.0, whole, dtype)]
        value = self.builder.call(function, arguments)
        return value if of else self.resized(value, lanes)

    def store(self, value: Value, pointer: Value, index: Value, dtype: torch.dtype = torch.float32) -> None:
        """A vector into neighbouring elements."""
        place = self.builder.gep(pointer, [index], source_etype=KINDS[dtype])
        lanes = value.type.count
        whole = rounded(lanes)
        if whole == lanes:
            self.builder.store(value, place, align=BYTES[dtype])
            return
        name = f"llvm.masked.store.v{whole}{SUFFIX[dtype]}.p0"
        mask = ir.VectorType(ir.IntType(1), whole)
        value = self.resized(value, whole)
        kind = ir.FunctionType(ir.VoidType(), [value.type, POINTER, ir.IntType(32), mask])
        arguments = [value, place, ir.IntType(32)(BYTES[dtype]), _mask(lanes, whole)]
        self.builder.call(self._intrinsic(name, kind), arguments)

    def resized(self, vector: Value, lanes: int) -> Value:
        """The first lanes of a vector, or a longer one that begins with it."""
        count = vector.type.count
        places = [min(lane, count) for lane in range(lanes)]  # `count` is the first lane of what is undefined
        nothing = ir.Constant(vector.type, ir.Undefined)
        return self.builder.shuffle_vector(vector, nothing, ir.Constant(ir.VectorType(ir.IntType(32), lanes), places))

    def scalar(self, pointer: Value, index: Value, dtype: torch.dtype = torch.float32) -> Value:
        return self.builder.load(self.builder.gep(pointer, [index], source_etype=KINDS[dtype]), typ=KINDS[dtype])

    def put(self, value: Value, pointer: Value, index: Value, dtype: torch.dtype = torch.float32) -> None:
        """Store one number."""
        self.builder.store(value, self.builder.gep(pointer, [index], source_etype=KINDS[dtype]))

    # -- numbers

    def number(self, value: float, lanes: int, dtype: torch.dtype = torch.float32) -> Value:
        """A vector of one number."""
        one = float(value) if dtype.is_floating_point else int(value)
        return ir.Constant(ir.VectorType(KINDS[dtype], lanes), [one] * lanes)

    def spread(self, value: Value, lanes: int) -> Value:
        """A number in every lane."""
        kind = ir.VectorType(value.type, lanes)
        nothing = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(nothing, value, ir.IntType(32)(0))
        return self._shuffled(one, nothing, [0] * lanes)

    def first(self, vector: Value) -> Value:
        return self.builder.extract_element(vector, ir.IntType(32)(0))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a b + c, rounded once."""
        return self.apply("fma", a, b, c)

    def apply(self, name: str, *values: Value) -> Value:
        """An intrinsic of LLVM's on vectors of one kind, lane by lane."""
        kind = values[0].type
        if isinstance(kind, ir.VectorType):
            full = f"llvm.{name}.v{kind.count}{_suffix(kind.element)}"
        else:
            full = f"llvm.{name}.{_suffix(kind)}"
        return self.builder.call(self._intrinsic(full, ir.FunctionType(kind, [kind] * len(values))), values)

    def total(self, vector: Value) -> Value:
        """The sum of the lanes, pair by pair."""
        kind = vector.type
        name = f"llvm.vector.reduce.fadd.v{kind.count}{_suffix(kind.element)}"
        function = self._intrinsic(name, ir.FunctionType(kind.element, [kind.element, kind]))
        return self.builder.call(function, [ir.Constant(kind.element, 0.0), vector], fastmath=("reassoc",))

    def totals(self, vectors: Sequence[Value]) -> Value:
        """The sums of the lanes of several vectors, side by side.

        Halves are added to halves, two vectors at a time: [a b] and [c d] become [a+b c+d]. That takes a third of the
        operations of summing up each by itself.
        """
        count, lanes = len(vectors), vectors[0].type.count
        nothing = ir.Constant(vectors[0].type, [0.0] * lanes)
        left: list[Value] = [*vectors, *[nothing] * (rounded(count) - count)]
        group = lanes  # lanes that still belong to one sum
        while group > 1:
            if len(left) > 1:
                pairs = list(zip(left[::2], left[1::2], strict=True))
            else:
                pairs = [(left[0], ir.Constant(left[0].type, ir.Undefined))]
            lanes = pairs[0][0].type.count * (2 if len(left) > 1 else 1)
            firsts = [start + lane for start in range(0, lanes, group) for lane in range(group // 2)]
            seconds = [place + group // 2 for place in firsts]
            left = [self.builder.fadd(self._shuffled(a, b, firsts), self._shuffled(a, b, seconds)) for a, b in pairs]
            group //= 2
        return self.resized(left[0], count)

    def _shuffled(self, a: Value, b: Value, places: Sequence[int]) -> Value:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places))

    def largest(self, vector: Value) -> Value:
        kind = vector.type
        name = f"llvm.vector.reduce.fmax.v{kind.count}{_suffix(kind.element)}"
        return self.builder.call(self._intrinsic(name, ir.FunctionType(kind.element, [kind])), [vector])

    def choose(self, condition: Value, yes: Value, no: Value) -> Value:
        return self.builder.select(condition, yes, no)

    def _intrinsic(self, name: str, kind: ir.FunctionType) -> Value:
        return self.module.globals.get(name) or ir.Function(self.module, kind, name)


def _suffix(kind: Value) -> str:
    return next(SUFFIX[dtype] for dtype, one in KINDS.items() if one == kind)


def rounded(lanes: int) -> int:
    """The next power of two."""
    return 1 << (lanes - 1).bit_length()


def _mask(lanes: int, of: int) -> Value:
    return ir.Constant(ir.VectorType(ir.IntType(1), of), [int(lane < lanes) for lane in range(of)])
