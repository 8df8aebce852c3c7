// Command tendril-device-plugin offers a node's Tendril devices to Kubernetes: a pod that asks for one gets the
// daemon's socket, the driver library, and that device for itself alone.
//
// It is a module of its own, so that gRPC and its dependencies are linked into nothing else. It knows the devices from
// `tendril devices --json`. It trusts the kubelet, which owns its directory, and the daemon. It takes no locks but
// plugin.mu.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// options are the program's flags.
type options struct {
	Resource string        // what pods ask for
	Tendril  string        // the program
	Socket   string        // of the daemon, on the host and in the pod
	Library  string        // the driver library, likewise
	Vendors  string        // directory with tendril.icd, likewise
	Type     string        // of the devices that are offered: gpu, cpu, accelerator; "" = all
	Lease    string        // how long a pod's program waits for its device: seconds, "block"; "" = it shares it
	Kubelet  string        // directory of the kubelet's socket and of the plugins'
	Every    time.Duration // between two looks at the devices and at the kubelet
}

func main() {
	var o options
	flag.StringVar(&o.Resource, "resource", "tendril.local/device", "resource `name` that pods ask for")
	flag.StringVar(&o.Tendril, "tendril", "tendril", "the tendril `program`")
	flag.StringVar(&o.Socket, "socket", "/run/tendril/tendril.sock", "`path` of the daemon's socket")
	flag.StringVar(&o.Library, "library", "/opt/tendril/lib/tendril/libtendril_opencl.so", "`path` of the driver library")
	flag.StringVar(&o.Vendors, "vendors", "/opt/tendril/lib/tendril/vendors", "`directory` with tendril.icd")
	flag.StringVar(&o.Type, "type", "", "offer devices of this `type` alone: gpu, cpu or accelerator (default all)")
	flag.StringVar(&o.Lease, "lease", "60", "how long a pod's program waits for its device, which is leased to it: "+
		"`seconds` or block; empty: no lease, programs outside Kubernetes share the device")
	flag.StringVar(&o.Kubelet, "kubelet", v1beta1.DevicePluginPath, "`directory` of the kubelet's socket")
	flag.DurationVar(&o.Every, "every", 5*time.Second, "`time` between two looks at the devices")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal("tendril-device-plugin: ", err)
	}
}

// validate names every fault of the options.
func (o options) validate() error {
	var faults []error
	if domain, name, ok := strings.Cut(o.Resource, "/"); !ok || domain == "" || name == "" {
		faults = append(faults, fmt.Errorf("--resource %q: want DOMAIN/NAME, such as tendril.local/gpu", o.Resource))
	}
	for flag, path := range map[string]string{"socket": o.Socket, "library": o.Library, "vendors": o.Vendors,
		"kubelet": o.Kubelet} {
		if !filepath.IsAbs(path) {
			faults = append(faults, fmt.Errorf("--%s %q is not an absolute path", flag, path))
		}
	}
	if o.Every < 10*time.Millisecond {
		faults = append(faults, fmt.Errorf("--every %v is less than 10ms", o.Every))
	}
	return errors.Join(faults...)
}

// run serves the kubelet until ctx ends. It begins again when the kubelet did: that one has forgotten its plugins.
func run(ctx context.Context, o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		p := newPlugin(o)
		if err := p.serve(ctx); err != nil && ctx.Err() == nil {
			log.Printf("the kubelet at %s: %v; trying again", o.Kubelet, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(o.Every):
		}
	}
	return ctx.Err()
}
