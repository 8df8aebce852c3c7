"""pyopencl, as its users write it: arrays, elementwise kernels, reductions, maps, profiling."""

import numpy as np
import pyopencl as cl
import pyopencl.array as cl_array
from pyopencl.elementwise import ElementwiseKernel
from pyopencl.reduction import ReductionKernel

context = cl.create_some_context(interactive=False)
queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
assert "Tendril" in context.devices[0].platform.name, context.devices[0].platform.name

a = np.random.default_rng(1).random(50000, dtype=np.float32)
b = np.arange(50000, dtype=np.float32)
x, y = cl_array.to_device(queue, a), cl_array.to_device(queue, b)
assert np.allclose((x * 2 + y).get(), a * 2 + b)

add = ElementwiseKernel(context, "float *x, float *y, float *z", "z[i] = x[i] + 3 * y[i]", "add3")
z = cl_array.empty_like(x)
add(x, y, z)
assert np.allclose(z.get(), a + 3 * b)

dot = ReductionKernel(context, np.float32, neutral="0", reduce_expr="a+b", map_expr="x[i]*y[i]", arguments="__global float *x, __global float *y")
assert np.isclose(dot(x, y).get(), np.dot(a.astype("f8"), b), rtol=1e-3)

program = cl.Program(context, "kernel void twice(global float *a) { int i = get_global_id(0); a[i] *= 2; }").build()
buf = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=a)
event = program.twice(queue, a.shape, None, buf)
event.wait()
assert event.profile.end >= event.profile.start
mapped, _ = cl.enqueue_map_buffer(queue, buf, cl.map_flags.READ, 0, a.shape, a.dtype)
assert np.allclose(mapped, a * 2)
mapped.base.release(queue)

try:
    cl.Program(context, "kernel void broken(global float *a) { a[0] = nobody; }").build()
    raise SystemExit("a broken program was built")
except cl.RuntimeError as e:
    assert "nobody" in str(e), e

queue.finish()
print("all good")
