// Events: wait lists, user events, callbacks, markers, barriers, profiling, out-of-order queues.
#include "dt.h"
#include <pthread.h>

static const char *src =
    "kernel void inc(global int *a) { atomic_inc(a); }\n"
    "kernel void advance(global int *a, int from, int to) { if (*a == from) *a = to; else *a = -1000; }\n";
static cl_kernel inc, step;
static cl_mem m;
static size_t one = 1;

static int value(void) {
    int v = 77;
    must(clEnqueueReadBuffer(queue, m, CL_TRUE, 0, sizeof v, &v, 0, NULL, NULL), "value");
    return v;
}

static void zero(void) {
    int v = 0;
    must(clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, sizeof v, &v, 0, NULL, NULL), "zero");
}

static const char *state(cl_event e) {
    cl_int s = 99;
    cl_int r = clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
    if (r) return dt_name(r);
    return s < 0 ? "failed" : s == CL_COMPLETE ? "complete" : "not complete";
}

static void facts(const char *label, cl_event e, cl_command_queue q) {
    cl_command_type t = 0;
    cl_command_queue of = NULL;
    cl_context c = NULL;
    clGetEventInfo(e, CL_EVENT_COMMAND_TYPE, sizeof t, &t, NULL);
    cl_int r = clGetEventInfo(e, CL_EVENT_COMMAND_QUEUE, sizeof of, &of, NULL);
    clGetEventInfo(e, CL_EVENT_CONTEXT, sizeof c, &c, NULL);
    SAY(label, "type %x %s queue %s context %s", t, dt_name(r), of == q ? "ours" : "other", c == context ? "ours" : "other");
}

static void types(void) {
    char host[64] = {0};
    cl_event e[16] = {0};
    int n = 0, pat = 1;
    size_t o[3] = {0}, r[3] = {4, 1, 1};
    cl_mem a = buffer(0, 64, NULL), b = buffer(0, 64, NULL);
    clEnqueueReadBuffer(queue, a, CL_FALSE, 0, 64, host, 0, NULL, &e[n++]);
    clEnqueueWriteBuffer(queue, a, CL_FALSE, 0, 64, host, 0, NULL, &e[n++]);
    clEnqueueCopyBuffer(queue, a, b, 0, 0, 64, 0, NULL, &e[n++]);
    clEnqueueFillBuffer(queue, a, &pat, 4, 0, 64, 0, NULL, &e[n++]);
    clEnqueueReadBufferRect(queue, a, CL_FALSE, o, o, r, 0, 0, 0, 0, host, 0, NULL, &e[n++]);
    clEnqueueWriteBufferRect(queue, a, CL_FALSE, o, o, r, 0, 0, 0, 0, host, 0, NULL, &e[n++]);
    clEnqueueCopyBufferRect(queue, a, b, o, o, r, 0, 0, 0, 0, 0, NULL, &e[n++]);
    void *p = clEnqueueMapBuffer(queue, a, CL_FALSE, CL_MAP_READ, 0, 64, 0, NULL, &e[n++], &err);
    clFinish(queue);
    clEnqueueUnmapMemObject(queue, a, p, 0, NULL, &e[n++]);
    clEnqueueMigrateMemObjects(queue, 1, &a, 0, 0, NULL, &e[n++]);
    clEnqueueMarkerWithWaitList(queue, 0, NULL, &e[n++]);
    clEnqueueBarrierWithWaitList(queue, 0, NULL, &e[n++]);
    clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, NULL, 0, NULL, &e[n++]);
    clEnqueueTask(queue, inc, 0, NULL, &e[n++]);
    ERR("marker 1.1", clEnqueueMarker(queue, &e[n++]));
    ERR("finish types", clFinish(queue));
    for (int i = 0; i < n; i++) {
        facts(L("event %d", i), e[i], queue);
        SAY(L("event %d state", i), "%s", state(e[i]));
        REFS(L("event %d refs", i), e[i], Event, EVENT);
        ERR(L("event %d release", i), clReleaseEvent(e[i]));
    }
    cl_event u = clCreateUserEvent(context, &err);
    facts("user event", u, NULL);
    clReleaseEvent(u);
    clReleaseMemObject(a); clReleaseMemObject(b);
}

static void errors(void) {
    cl_event u = clCreateUserEvent(context, &err), k;
    cl_event list[2] = {u, NULL};
    cl_ulong t;
    MAKE("user event null context", k, clCreateUserEvent(NULL, &err));
    ERR("wait none", clWaitForEvents(0, NULL));
    ERR("wait null list", clWaitForEvents(1, NULL));
    ERR("set status 1", clSetUserEventStatus(u, 1));
    ERR("set status submitted", clSetUserEventStatus(u, CL_SUBMITTED));
    SAY("user event before", "%s", state(u));
    ERR("profiling of a user event", clGetEventProfilingInfo(u, CL_PROFILING_COMMAND_END, sizeof t, &t, NULL));
    ERR("set status complete", clSetUserEventStatus(u, CL_COMPLETE));
    ERR("set status twice", clSetUserEventStatus(u, CL_COMPLETE));
    SAY("user event after", "%s", state(u));
    ERR("wait for it", clWaitForEvents(1, &u));
    clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, NULL, 0, NULL, &k);
    ERR("set status of a command", clSetUserEventStatus(k, CL_COMPLETE));
    ERR("profiling without the property", clGetEventProfilingInfo(k, CL_PROFILING_COMMAND_END, sizeof t, &t, NULL));
    ERR("event info unknown", clGetEventInfo(k, 0x9999, sizeof t, &t, NULL));
    ERR("event info small", clGetEventInfo(k, CL_EVENT_CONTEXT, 2, &t, NULL));
    ERR("event callback null", clSetEventCallback(k, CL_COMPLETE, NULL, NULL));
    clFinish(queue);
    clReleaseEvent(k);
    ERR("marker null queue", clEnqueueMarkerWithWaitList(NULL, 0, NULL, NULL));
    ERR("barrier null queue", clEnqueueBarrierWithWaitList(NULL, 0, NULL, NULL));
    ERR("marker wait count without list", clEnqueueMarkerWithWaitList(queue, 1, NULL, NULL));
    ERR("barrier wait list without count", clEnqueueBarrierWithWaitList(queue, 0, list, NULL));
    ERR("marker wait null in list", clEnqueueMarkerWithWaitList(queue, 2, list, NULL));
    ERR("kernel wait null in list", clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, NULL, 2, list, NULL));
    ERR("marker 1.1 null event", clEnqueueMarker(queue, NULL));
    ERR("retain null event", clRetainEvent(NULL));
    ERR("release null event", clReleaseEvent(NULL));
    ERR("flush null", clFlush(NULL));
    ERR("finish null", clFinish(NULL));
    ERR("barrier 1.1", clEnqueueBarrier(queue));
    ERR("finish errors", clFinish(queue));
    clReleaseEvent(u);
}

static void gates(void) {
    // One gate holds commands in three queues, one of them out of order.
    cl_command_queue q2 = clCreateCommandQueue(context, device, 0, &err), q3 = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err);
    SAY("out-of-order queue", "%s", dt_name(err));
    cl_event gate = clCreateUserEvent(context, &err), a, b, c, d;
    zero();
    int from = 0, to = 1;
    clSetKernelArg(step, 1, sizeof from, &from);
    clSetKernelArg(step, 2, sizeof to, &to);
    ERR("gated a", clEnqueueNDRangeKernel(queue, step, 1, NULL, &one, NULL, 1, &gate, &a));
    from = 1; to = 2; // a keeps the arguments it was enqueued with
    clSetKernelArg(step, 1, sizeof from, &from);
    clSetKernelArg(step, 2, sizeof to, &to);
    ERR("gated b", clEnqueueNDRangeKernel(q2, step, 1, NULL, &one, NULL, 1, &a, &b));
    from = 2; to = 3;
    clSetKernelArg(step, 1, sizeof from, &from);
    clSetKernelArg(step, 2, sizeof to, &to);
    ERR("gated c", clEnqueueNDRangeKernel(q3, step, 1, NULL, &one, NULL, 1, &b, &c));
    ERR("gated d", clEnqueueMarkerWithWaitList(q2, 1, &c, &d));
    ERR("flush gated", clFlush(queue));
    ERR("flush gated 2", clFlush(q2));
    ERR("flush gated 3", clFlush(q3));
    SAY("gated states", "%s, %s, %s, %s", state(a), state(b), state(c), state(d));
    ERR("open the gate", clSetUserEventStatus(gate, CL_COMPLETE));
    ERR("wait for the last", clWaitForEvents(1, &d));
    SAY("gated result", "%d", value());
    SAY("gated states after", "%s, %s, %s, %s", state(a), state(b), state(c), state(d));
    clFinish(q2); clFinish(q3);
    clReleaseEvent(a); clReleaseEvent(b); clReleaseEvent(c); clReleaseEvent(d); clReleaseEvent(gate);

    // Reads and writes behind a gate.
    gate = clCreateUserEvent(context, &err);
    int in = 4711, out = 0;
    clEnqueueWriteBuffer(queue, m, CL_FALSE, 0, sizeof in, &in, 1, &gate, &a);
    clEnqueueReadBuffer(queue, m, CL_FALSE, 0, sizeof out, &out, 0, NULL, &b);
    SAY("gated write and read", "%s, %s", state(a), state(b));
    clSetUserEventStatus(gate, CL_COMPLETE);
    ERR("gated write and read end", clWaitForEvents(1, &b));
    SAY("gated write and read result", "%d", out);
    clReleaseEvent(a); clReleaseEvent(b); clReleaseEvent(gate);

    // Out of order: a thousand increments, a barrier, a read.
    zero();
    for (int i = 0; i < 1000; i++) clEnqueueNDRangeKernel(q3, inc, 1, NULL, &one, NULL, 0, NULL, NULL);
    ERR("out-of-order barrier", clEnqueueBarrierWithWaitList(q3, 0, NULL, &a));
    clEnqueueReadBuffer(q3, m, CL_FALSE, 0, sizeof out, &out, 0, NULL, &b);
    ERR("out-of-order read", clWaitForEvents(1, &b));
    SAY("out-of-order sum", "%d", out);
    ERR("out-of-order marker", clEnqueueMarkerWithWaitList(q3, 0, NULL, &c));
    ERR("out-of-order wait", clWaitForEvents(1, &c));
    SAY("out-of-order barrier's state", "%s", state(a));
    clReleaseEvent(a); clReleaseEvent(b); clReleaseEvent(c);

    // A queue may be released while commands wait in it.
    gate = clCreateUserEvent(context, &err);
    zero();
    clEnqueueNDRangeKernel(q2, inc, 1, NULL, &one, NULL, 1, &gate, &a);
    clSetUserEventStatus(gate, CL_COMPLETE);
    ERR("release a queue with work", clReleaseCommandQueue(q2));
    ERR("its event", clWaitForEvents(1, &a));
    SAY("its work", "%d", value());
    clReleaseEvent(a); clReleaseEvent(gate); clReleaseCommandQueue(q3);
}

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cv = PTHREAD_COND_INITIALIZER;
static int calls, statuses[8];
static void CL_CALLBACK noted(cl_event e, cl_int s, void *data) {
    (void)e;
    pthread_mutex_lock(&mu);
    statuses[(long)data] = s;
    calls++;
    pthread_cond_signal(&cv);
    pthread_mutex_unlock(&mu);
}

static void until_noted(int i) {
    pthread_mutex_lock(&mu);
    while (statuses[i] == 99) pthread_cond_wait(&cv, &mu);
    pthread_mutex_unlock(&mu);
}

static void callbacks(void) {
    cl_event gate = clCreateUserEvent(context, &err), k;
    for (int i = 0; i < 8; i++) statuses[i] = 99;
    clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, NULL, 1, &gate, &k);
    ERR("callback complete", clSetEventCallback(k, CL_COMPLETE, noted, (void *)0));
    ERR("callback running", clSetEventCallback(k, CL_RUNNING, noted, (void *)1));
    ERR("callback submitted", clSetEventCallback(k, CL_SUBMITTED, noted, (void *)2));
    ERR("callback queued", clSetEventCallback(k, CL_QUEUED, noted, (void *)3));
    ERR("callback of the gate", clSetEventCallback(gate, CL_COMPLETE, noted, (void *)4));
    clFlush(queue);
    clSetUserEventStatus(gate, CL_COMPLETE);
    pthread_mutex_lock(&mu);
    while (calls < 4) pthread_cond_wait(&cv, &mu);
    pthread_mutex_unlock(&mu);
    SAY("callbacks", "complete %d running %d submitted %d gate %d", statuses[0], statuses[1], statuses[2], statuses[4]);
    ERR("callback on a completed event", clSetEventCallback(k, CL_COMPLETE, noted, (void *)5));
    until_noted(5);
    SAY("late callback", "%d", statuses[5]);
    clReleaseEvent(k);
    clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, NULL, 0, NULL, &k);
    clFlush(queue);
    usleep(20000); // it ends while nobody looks
    ERR("callback on an event that ended unseen", clSetEventCallback(k, CL_COMPLETE, noted, (void *)6));
    until_noted(6);
    SAY("its callback", "%d", statuses[6]);
    clReleaseEvent(k);
    clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, NULL, 0, NULL, &k);
    for (int i = 0; i < 2; i++) { // the second time nobody is woken for the first callback's sake
        statuses[7] = 99;
        ERR(i ? "the same callback again" : "callback of the submission", clSetEventCallback(k, CL_SUBMITTED, noted, (void *)7));
        clFlush(queue);
        until_noted(7);
        usleep(20000);
    }
    SAY("both callbacks", "%d", statuses[7]);
    clReleaseEvent(k); clReleaseEvent(gate);
}

static void failures(void) {
    cl_event gate = clCreateUserEvent(context, &err), a, b;
    zero();
    clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, NULL, 1, &gate, &a);
    cl_command_queue q2 = clCreateCommandQueue(context, device, 0, &err);
    clEnqueueNDRangeKernel(q2, inc, 1, NULL, &one, NULL, 1, &a, &b);
    ERR("fail the gate", clSetUserEventStatus(gate, -7));
    ERR("failed gate waited for", clWaitForEvents(1, &gate));
    ERR("failed dependent waited for", clWaitForEvents(1, &a));
    ERR("failed dependent's dependent waited for", clWaitForEvents(1, &b));
    cl_int s = 99;
    clGetEventInfo(gate, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
    SAY("failed gate's status", "%d", s);
    SAY("failed states", "%s, %s", state(a), state(b));
    ERR("failed finish", clFinish(q2));
    clReleaseEvent(gate); clReleaseEvent(a); clReleaseEvent(b); clReleaseCommandQueue(q2);
}

static void profiling(void) {
    cl_command_queue q = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &err);
    SAY("profiling queue", "%s", dt_name(err));
    char host[64] = {0};
    cl_event e[3];
    clEnqueueNDRangeKernel(q, inc, 1, NULL, &one, NULL, 0, NULL, &e[0]);
    clEnqueueWriteBuffer(q, m, CL_FALSE, 0, 4, host, 0, NULL, &e[1]);
    clEnqueueMarkerWithWaitList(q, 0, NULL, &e[2]);
    ERR("profiling finish", clFinish(q));
    for (int i = 0; i < 3; i++) {
        cl_ulong t[5] = {0};
        cl_int r[5];
        for (int k = 0; k < 5; k++) r[k] = clGetEventProfilingInfo(e[i], CL_PROFILING_COMMAND_QUEUED + k, sizeof t[k], &t[k], NULL);
        SAY(L("profiling %d", i), "%s %s %s %s %s in order %s", dt_name(r[0]), dt_name(r[1]), dt_name(r[2]), dt_name(r[3]), dt_name(r[4]),
            t[0] && t[0] <= t[1] && t[1] <= t[2] && t[2] <= t[3] ? "yes" : "no");
        ERR(L("profiling %d unknown", i), clGetEventProfilingInfo(e[i], 0x9999, sizeof t[0], &t[0], NULL));
        ERR(L("profiling %d small", i), clGetEventProfilingInfo(e[i], CL_PROFILING_COMMAND_END, 4, &t[0], NULL));
        clReleaseEvent(e[i]);
    }
    cl_event gate = clCreateUserEvent(context, &err), w;
    clEnqueueNDRangeKernel(q, inc, 1, NULL, &one, NULL, 1, &gate, &w);
    cl_ulong t;
    ERR("profiling before the end", clGetEventProfilingInfo(w, CL_PROFILING_COMMAND_END, sizeof t, &t, NULL));
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(q);
    clReleaseEvent(gate); clReleaseEvent(w); clReleaseCommandQueue(q);
}

int main(void) {
    setup(0);
    cl_program p = build(src, "");
    inc = clCreateKernel(p, "inc", &err);
    step = clCreateKernel(p, "advance", &err);
    must(err, "clCreateKernel");
    m = buffer(0, 64, NULL);
    clSetKernelArg(inc, 0, sizeof m, &m);
    clSetKernelArg(step, 0, sizeof m, &m);
    types();
    errors();
    gates();
    callbacks();
    profiling();
    failures();
    return 0;
}
