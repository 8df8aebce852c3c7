// byhand is what a chain that alternates between two nodes costs without Tendril: two processes, each with the native driver, hand it to each other
// over TCP, in blocking calls. Its first line says on which port the second of them listens. A line "PORT TEST" on standard input is answered with two
// numbers: ns a step, by way of whatever listens on PORT and passes on to the second process, and how often it ran the chain. chain: the counter goes
// along, is written to the device, and read from it. events: each process has a counter of its own. Results are checked.
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { \
	fprintf(stderr, "byhand: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { CHAIN = 100, ROUNDS = 5 };

struct message {
	cl_int share, value;
	char more[56];
};

static cl_command_queue queue;
static cl_kernel add;
static cl_mem counter;

static void open_device(void)
{
	cl_platform_id platform;
	cl_device_id device;
	cl_int code;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	CHECK(code);
	queue = clCreateCommandQueue(context, device, 0, &code);
	CHECK(code);
	counter = clCreateBuffer(context, CL_MEM_READ_WRITE, 4, NULL, &code);
	CHECK(code);
	const char *source = "kernel void add(global int *v) { v[0]++; }";
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
	CHECK(code);
	CHECK(clBuildProgram(program, 0, NULL, "", NULL, NULL));
	add = clCreateKernel(program, "add", &code);
	CHECK(code);
	CHECK(clSetKernelArg(add, 0, sizeof counter, &counter));
}

static void put(cl_int v) { CHECK(clEnqueueWriteBuffer(queue, counter, CL_TRUE, 0, 4, &v, 0, NULL, NULL)); }

static cl_int get(void)
{
	cl_int v;
	CHECK(clEnqueueReadBuffer(queue, counter, CL_TRUE, 0, 4, &v, 0, NULL, NULL));
	return v;
}

// step runs one kernel of the chain and waits for it.
static void step(struct message *m)
{
	size_t one = 1;
	if (m->share)
		CHECK(clEnqueueWriteBuffer(queue, counter, CL_FALSE, 0, 4, &m->value, 0, NULL, NULL));
	CHECK(clEnqueueNDRangeKernel(queue, add, 1, NULL, &one, NULL, 0, NULL, NULL));
	if (m->share)
		m->value = get();
	else
		CHECK(clFinish(queue));
}

static int pass(int fd, struct message *m)
{
	return send(fd, m, sizeof *m, MSG_NOSIGNAL) == sizeof *m;
}

static int take(int fd, struct message *m) { return recv(fd, m, sizeof *m, MSG_WAITALL) == sizeof *m; }

// serve is the second process.
static void serve(int listener)
{
	struct message m;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_device();
	for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
		at_once(fd);
		while (take(fd, &m)) {
			step(&m);
			if (!pass(fd, &m))
				break;
		}
	}
	_exit(0);
}

static double chain(int fd, int share)
{
	double best = 1e18;
	for (int r = 0; r < ROUNDS; r++) {
		struct message m = {.share = share};
		put(0);
		double start = now();
		for (int i = 0; i < CHAIN / 2; i++) {
			step(&m);
			if (!pass(fd, &m) || !take(fd, &m))
				die("byhand: chain");
		}
		double took = (now() - start) / CHAIN;
		if (took < best)
			best = took;
		if (share ? m.value != CHAIN : get() != CHAIN / 2) {
			fprintf(stderr, "byhand: the chain came to %d and %d\n", m.value, get());
			exit(1);
		}
	}
	return best;
}

int main(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof at;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port;
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, n) < 0 || listen(listener, 8) < 0 || getsockname(listener, (struct sockaddr *)&at, &n) < 0)
		die("byhand: listen");
	pid_t other = fork(); // before the driver has threads
	if (other < 0)
		die("byhand: fork");
	if (other == 0)
		serve(listener);
	close(listener);
	open_device();
	printf("ready %d\n", ntohs(at.sin_port));
	fflush(stdout);
	char line[64], test[16];
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "%d %15s", &port, test) != 2)
			return 1;
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		at.sin_port = htons(port);
		if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
			die("byhand: connect");
		at_once(fd);
		printf("%.0f %d\n", chain(fd, strcmp(test, "chain") == 0), ROUNDS);
		fflush(stdout);
		close(fd);
	}
	return 0;
}
