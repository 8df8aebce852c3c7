package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// fakeKubelet takes registrations, as the kubelet does.
type fakeKubelet struct {
	v1beta1.UnimplementedRegistrationServer
	server     *grpc.Server
	registered chan *v1beta1.RegisterRequest
}

func (k *fakeKubelet) Register(_ context.Context, m *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k.registered <- m
	return &v1beta1.Empty{}, nil
}

func startKubelet(t *testing.T, dir string) *fakeKubelet {
	t.Helper()
	path := filepath.Join(dir, "kubelet.sock")
	os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	k := &fakeKubelet{server: grpc.NewServer(), registered: make(chan *v1beta1.RegisterRequest, 1)}
	v1beta1.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(l)
	t.Cleanup(k.server.Stop)
	return k
}

func (k *fakeKubelet) awaitPlugin(t *testing.T) *v1beta1.RegisterRequest {
	t.Helper()
	select {
	case m := <-k.registered:
		return m
	case <-time.After(5 * time.Minute):
		t.Fatal("nobody has registered")
		return nil
	}
}

// fakeTendril makes a program that says what a file says, or fails where there is none.
func fakeTendril(t *testing.T, dir string) (program, says string) {
	t.Helper()
	program, says = filepath.Join(dir, "tendril"), filepath.Join(dir, "devices.json")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec cat "+says+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, says
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// started is a plugin that has registered.
type started struct {
	o       options
	says    string
	kubelet *fakeKubelet
	client  v1beta1.DevicePluginClient
	list    grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]
}

func start(t *testing.T, change func(*options)) *started {
	t.Helper()
	dir, err := os.MkdirTemp("", "tdp") // a short path: a socket's has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	x := &started{kubelet: startKubelet(t, dir)}
	x.o = options{Resource: "tendril.local/gpu", Socket: "/run/tendril/tendril.sock", Library: "/opt/tendril/lib/t.so",
		Vendors: "/opt/tendril/vendors", Type: "gpu", Lease: "60", Kubelet: dir, Every: 20 * time.Millisecond}
	x.o.Tendril, x.says = fakeTendril(t, dir)
	write(t, x.says, `[{"uuid":"bb","type":"gpu"},{"uuid":"aa","type":"gpu"},{"uuid":"aa","type":"gpu"},
		{"uuid":"cc","type":"cpu"}]`)
	if change != nil {
		change(&x.o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- run(ctx, x.o) }()
	t.Cleanup(func() { cancel(); <-over })
	x.connect(t)
	return x
}

// connect reaches the plugin where it has registered.
func (x *started) connect(t *testing.T) {
	t.Helper()
	m := x.kubelet.awaitPlugin(t)
	if m.Version != "v1beta1" || m.ResourceName != x.o.Resource {
		t.Fatalf("registered as %v", m)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(x.o.Kubelet, m.Endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	x.client = v1beta1.NewDevicePluginClient(conn)
	if x.list, err = x.client.ListAndWatch(t.Context(), &v1beta1.Empty{}); err != nil {
		t.Fatal(err)
	}
}

// wantList reads the next list of devices.
func (x *started) wantList(t *testing.T, want string) {
	t.Helper()
	m, err := x.list.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, d := range m.Devices {
		have = append(have, d.ID+" "+d.Health)
	}
	if got := strings.Join(have, ", "); got != want {
		t.Fatalf("devices: %s; want %s", got, want)
	}
}

// A pod gets the socket, the library and its devices, leased.
func TestAllocate(t *testing.T) {
	x := start(t, nil)
	x.wantList(t, "aa Healthy, bb Healthy")
	reply, err := x.client.Allocate(t.Context(), &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{"bb", "aa"}},
			{DevicesIds: []string{"bb"}}}})
	if err != nil || len(reply.ContainerResponses) != 2 {
		t.Fatal(reply, err)
	}
	c := reply.ContainerResponses[0]
	for name, want := range map[string]string{"TENDRIL_SOCKET": x.o.Socket, "TENDRIL_DEVICES": "aa;bb",
		"TENDRIL_LEASE":      "2",
		"TENDRIL_LEASE_WAIT": "60", "OCL_ICD_FILENAMES": x.o.Library, "OCL_ICD_VENDORS": x.o.Vendors} {
		if c.Envs[name] != want {
			t.Errorf("%s=%s, want %s", name, c.Envs[name], want)
		}
	}
	var mounts []string
	for _, m := range c.Mounts {
		mounts = append(mounts, m.HostPath)
		if m.ContainerPath != m.HostPath || !m.ReadOnly {
			t.Errorf("mount %v", m)
		}
	}
	if got := strings.Join(mounts, " "); got != "/run/tendril /opt/tendril/lib/t.so /opt/tendril/vendors" {
		t.Errorf("mounts: %s", got)
	}
	if got := reply.ContainerResponses[1].Envs["TENDRIL_DEVICES"]; got != "bb" {
		t.Errorf("the second container has %s", got)
	}
	_, err = x.client.Allocate(t.Context(), &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{"cc"}}}})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "cc") {
		t.Errorf("a device that is not offered: %v", err)
	}
}

// A device that goes, or whose daemon does, is not healthy, until it comes back.
func TestHealth(t *testing.T) {
	x := start(t, nil)
	x.wantList(t, "aa Healthy, bb Healthy")
	write(t, x.says, `[{"uuid":"aa","type":"gpu"}]`)
	x.wantList(t, "aa Healthy, bb Unhealthy")
	if err := os.Remove(x.says); err != nil {
		t.Fatal(err)
	}
	x.wantList(t, "aa Unhealthy, bb Unhealthy")
	write(t, x.says, `[{"uuid":"aa","type":"gpu"},{"uuid":"dd","type":"gpu"}]`)
	x.wantList(t, "aa Healthy, bb Unhealthy, dd Healthy")
}

// A kubelet that begins anew is registered with again.
func TestKubeletBeginsAnew(t *testing.T) {
	x := start(t, nil)
	x.wantList(t, "aa Healthy, bb Healthy")
	x.kubelet.server.Stop()
	x.kubelet = startKubelet(t, x.o.Kubelet)
	x.connect(t)
	x.wantList(t, "aa Healthy, bb Healthy")
}

func TestFaultyOptions(t *testing.T) {
	err := run(t.Context(), options{Resource: "gpu", Socket: "sock", Library: "/l", Vendors: "/v", Kubelet: "/k"})
	for _, want := range []string{`"gpu"`, `"sock"`, "--every 0s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
