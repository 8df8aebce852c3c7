package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin serves one life of the kubelet.
type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	o options

	mu      sync.Mutex
	known   []string      // UUIDs of all devices that there ever were, sorted
	there   []string      // of those that are there now, sorted
	changed chan struct{} // closed when there is another one
}

func newPlugin(o options) *plugin { return &plugin{o: o, changed: make(chan struct{})} }

// serve offers the devices until ctx ends, the kubelet begins anew or an error comes.
func (p *plugin) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.look(ctx)
	name := "tendril-" + strings.ReplaceAll(p.o.Resource, "/", "_") + ".sock"
	path := filepath.Join(p.o.Kubelet, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	defer running.Wait()
	defer server.Stop()
	kubelet := filepath.Join(p.o.Kubelet, "kubelet.sock")
	life, err := lifeOf(kubelet)
	if err != nil {
		return err
	}
	if err := p.register(ctx, kubelet, name); err != nil {
		return err
	}
	log.Printf("%d devices are offered as %s", len(p.there), p.o.Resource)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(p.o.Every):
		}
		p.look(ctx)
		if now, err := lifeOf(kubelet); err != nil || now != life {
			return errors.Join(errors.New("the kubelet has begun anew"), err)
		}
	}
}

// lifeOf tells one life of the kubelet from the next: each makes its socket.
func lifeOf(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	inode := info.Sys().(*syscall.Stat_t)
	return fmt.Sprint(inode.Ino, inode.Ctim), nil
}

func (p *plugin) register(ctx context.Context, kubelet, endpoint string) error {
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{Version: v1beta1.Version,
		Endpoint: endpoint, ResourceName: p.o.Resource, Options: &v1beta1.DevicePluginOptions{}})
	return err
}

// look asks the daemon for its devices. Where it does not answer there are none.
func (p *plugin) look(ctx context.Context) {
	list, err := devices(ctx, p.o)
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Equal(list, p.there) {
		return
	}
	if err != nil {
		log.Printf("the daemon: %v; its devices are not healthy", err)
	}
	p.there = list
	p.known = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(p.known), list...))))
	close(p.changed)
	p.changed = make(chan struct{})
}

// devices lists the UUIDs of the daemon's devices. Two drivers may show one.
func devices(ctx context.Context, o options) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var said strings.Builder
	cmd := exec.CommandContext(ctx, o.Tendril, "devices", "--json", "--socket", o.Socket)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	var all []struct {
		UUID string `json:"uuid"`
		Type string `json:"type"`
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("%s devices --json: %w", o.Tendril, err)
	}
	var list []string
	for _, d := range all {
		if d.UUID != "" && (o.Type == "" || d.Type == o.Type) {
			list = append(list, d.UUID)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// GetDevicePluginOptions implements the kubelet's interface.
func (p *plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices, and again whenever there are others. One that is gone stays in the list, as one that
// is not healthy: a pod may have it.
func (p *plugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		changed := p.changed
		reply := &v1beta1.ListAndWatchResponse{}
		for _, id := range p.known {
			health := v1beta1.Healthy
			if !slices.Contains(p.there, id) {
				health = v1beta1.Unhealthy
			}
			reply.Devices = append(reply.Devices, &v1beta1.Device{ID: id, Health: health})
		}
		p.mu.Unlock()
		if err := stream.Send(reply); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		}
	}
}

// Allocate gives each container what a program needs to use its devices. The kubelet gives a device to one container at
// a time.
func (p *plugin) Allocate(_ context.Context, m *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	reply := &v1beta1.AllocateResponse{}
	for _, c := range m.ContainerRequests {
		ids := slices.Sorted(slices.Values(c.DevicesIds))
		p.mu.Lock()
		for _, id := range ids {
			if !slices.Contains(p.there, id) {
				p.mu.Unlock()
				return nil, status.Errorf(codes.Unavailable, "device %s is not there: tendril devices lists those that are", id)
			}
		}
		p.mu.Unlock()
		reply.ContainerResponses = append(reply.ContainerResponses, p.container(ids))
	}
	return reply, nil
}

func (p *plugin) container(ids []string) *v1beta1.ContainerAllocateResponse {
	x := &v1beta1.ContainerAllocateResponse{Envs: map[string]string{
		"TENDRIL_SOCKET": p.o.Socket, "TENDRIL_DEVICES": strings.Join(ids, ";"),
		"OCL_ICD_VENDORS": p.o.Vendors, "OPENCL_VENDOR_PATH": p.o.Vendors, "OCL_ICD_FILENAMES": p.o.Library}}
	if p.o.Lease != "" {
		x.Envs["TENDRIL_LEASE"], x.Envs["TENDRIL_LEASE_WAIT"] = strconv.Itoa(len(ids)), p.o.Lease
	}
	// The socket's directory and not the socket: a daemon that starts again makes another one.
	for _, path := range []string{filepath.Dir(p.o.Socket), p.o.Library, p.o.Vendors} {
		x.Mounts = append(x.Mounts, &v1beta1.Mount{HostPath: path, ContainerPath: path, ReadOnly: true})
	}
	return x
}
