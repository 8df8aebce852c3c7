// What a blocking call promises: when it returns, its command is complete, for every queue and thread.
#include "dt.h"

enum { ROUNDS = 200, N = 4096 };

static const char *src =
    "kernel void slow(global uint *x, uint n) { uint v = *x; for (uint i = 0; i < n; i++) v = v * 1664525u + 1013904223u; *x = v; }\n"
    "kernel void take(global const uint *y, global uint *z) { *z = *y + 1; }\n";

static const char *state(cl_event e) {
    cl_int s = 99;
    clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
    return s == CL_COMPLETE ? "complete" : "not complete";
}

int main(void) {
    setup(0);
    cl_command_queue q[3] = {queue, clCreateCommandQueue(context, device, 0, &err), clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err)};
    cl_program p = build(src, "");
    cl_kernel slow = clCreateKernel(p, "slow", &err), take = clCreateKernel(p, "take", &err);
    cl_mem x = buffer(0, 64, NULL), y = buffer(0, N, NULL), z = buffer(0, 64, NULL);
    cl_uint n = 300000, one = 1;
    size_t g = 1;
    clSetKernelArg(slow, 0, sizeof x, &x);
    clSetKernelArg(slow, 1, sizeof n, &n);
    clSetKernelArg(take, 0, sizeof y, &y);
    clSetKernelArg(take, 1, sizeof z, &z);
    clEnqueueFillBuffer(queue, x, &one, 4, 0, 64, 0, NULL, NULL);
    clFinish(queue);
    static cl_uint in[N / 4], back[N / 4];
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
            int wrong[6] = {0}, open = 0;
            for (cl_uint r = 1; r <= ROUNDS / 4; r++) {
                cl_event ev, u;
                cl_uint out = 0;
                in[0] = r * 3;
                clEnqueueNDRangeKernel(q[a], slow, 1, NULL, &g, NULL, 0, NULL, NULL);
                // written in one queue, used by a kernel in another
                clEnqueueWriteBuffer(q[a], y, CL_TRUE, 0, 4, in, 0, NULL, &ev);
                open += strcmp(state(ev), "complete") != 0;
                clReleaseEvent(ev);
                in[0] = 0xBAD; // the program's memory is its own again
                clEnqueueNDRangeKernel(q[b], take, 1, NULL, &g, NULL, 0, NULL, &u);
                clEnqueueReadBuffer(q[b], z, CL_TRUE, 0, 4, &out, 1, &u, NULL);
                wrong[0] += out != r * 3 + 1;
                clReleaseEvent(u);
                // written in one, read in another
                in[0] = r * 5;
                clEnqueueNDRangeKernel(q[a], slow, 1, NULL, &g, NULL, 0, NULL, NULL);
                clEnqueueWriteBuffer(q[a], y, CL_TRUE, 0, N, in, 0, NULL, NULL);
                clEnqueueReadBuffer(q[b], y, CL_TRUE, 0, N, back, 0, NULL, &ev);
                wrong[1] += back[0] != r * 5;
                open += strcmp(state(ev), "complete") != 0;
                clReleaseEvent(ev);
                // written in one, mapped in another
                in[0] = r * 7;
                clEnqueueNDRangeKernel(q[a], slow, 1, NULL, &g, NULL, 0, NULL, NULL);
                clEnqueueWriteBuffer(q[a], y, CL_TRUE, 0, 8, in, 0, NULL, NULL);
                cl_uint *m = clEnqueueMapBuffer(q[b], y, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, N, 0, NULL, &ev, &err);
                wrong[2] += m[0] != r * 7;
                open += strcmp(state(ev), "complete") != 0;
                clReleaseEvent(ev);
                // changed through the map, unmapped and waited for, used in the first
                m[0] = r * 11;
                clEnqueueUnmapMemObject(q[b], y, m, 0, NULL, &u);
                clWaitForEvents(1, &u);
                clReleaseEvent(u);
                clEnqueueNDRangeKernel(q[a], take, 1, NULL, &g, NULL, 0, NULL, &u);
                clWaitForEvents(1, &u);
                clReleaseEvent(u);
                clEnqueueReadBuffer(q[b], z, CL_TRUE, 0, 4, &out, 0, NULL, NULL);
                wrong[3] += out != r * 11 + 1;
                // rectangles
                size_t o[3] = {0}, reg[3] = {4, 2, 1};
                in[0] = r * 13; in[1] = r * 17;
                clEnqueueNDRangeKernel(q[a], slow, 1, NULL, &g, NULL, 0, NULL, NULL);
                clEnqueueWriteBufferRect(q[a], y, CL_TRUE, o, o, reg, 64, 0, 4, 0, in, 0, NULL, NULL);
                clEnqueueReadBuffer(q[b], y, CL_TRUE, 0, N, back, 0, NULL, NULL);
                wrong[4] += back[0] != r * 13 || back[16] != r * 17;
                // a finished queue's work is seen by the others
                clEnqueueNDRangeKernel(q[a], take, 1, NULL, &g, NULL, 0, NULL, NULL);
                clFinish(q[a]);
                clEnqueueReadBuffer(q[b], z, CL_TRUE, 0, 4, &out, 0, NULL, NULL);
                wrong[5] += out != r * 13 + 1;
            }
            SAY(L("queues %d and %d", a, b), "kernel %d read %d map %d unmap %d rect %d finish %d wrong, %d events not complete", wrong[0], wrong[1], wrong[2], wrong[3], wrong[4], wrong[5], open);
        }
    return 0;
}
