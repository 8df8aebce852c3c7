//go:build !cgo

package keeper

import "tendril/forwarding/clwire"

// openCL needs cgo.
type openCL struct{}

func newOpenCL(OpenCLOptions) *openCL { return &openCL{} }

// answer refuses: this binary was built with CGO_ENABLED=0.
func (*openCL) answer(_ *clwire.KeeperRequest, _ []int, reply *clwire.KeeperReply) (int, error) {
	reply.Error, reply.Fault = "this binary was built without cgo and cannot load OpenCL drivers", clwire.KeeperNoDevice
	return -1, nil
}
