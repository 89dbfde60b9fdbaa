"""One instruction alone, over tensors of any strides."""

from codtdq.engine.cpu import library
from codtdq.engine.cpu.program_interface import Memory
from codtdq.engine.program.encoding import Arrays
from codtdq.engine.program.layout import Buffer, Place, Space, Type

TYPES = {"torch.float32": Type.F32, "torch.int32": Type.I32}


def run(make, written, *read, threads=1):
    """Build and run the instruction that `make` gives for the places of tensors.

    written: a tensor, or None for a constant among those that are read; returns the result code
    of the build, 0 if it ran.
    """
    constants = [one for one in read if one is not None and one.dtype.is_floating_point is False]
    inputs = [one for one in read if one is not None and one.dtype.is_floating_point]
    places = [_place(written, Space.OUTPUT, 0)]
    for one in read:
        if one is None:
            places.append(None)
            continue
        constant = not one.dtype.is_floating_point
        group = constants if constant else inputs
        number = next(i for i, other in enumerate(group) if other is one)
        places.append(_place(one, Space.CONSTANT if constant else Space.INPUT, number))
    arrays = Arrays(
        [make(places)],
        [(one.data_ptr(), _extent(one)) for one in constants],
        [_extent(one) for one in inputs],
        [_extent(written)],
        0,
    )
    engine = library.engine()
    code, handle, _ = arrays.build(engine)
    if code:
        return code
    given = (Memory * max(len(inputs), 1))(*((one.data_ptr(), _extent(one)) for one in inputs))
    made = (Memory * 1)((written.data_ptr(), _extent(written)))
    library.check(engine.cod_program_run(handle, given, len(inputs), made, 1, threads))
    engine.cod_program_free(handle)
    return 0


def _place(x, space, number):
    strides = tuple(0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True))
    buffer = Buffer(_extent(x), space, number)
    return Place(buffer, tuple(x.shape), strides, type=TYPES[str(x.dtype)])


def _extent(x):
    return (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))) * 4
