package client

import (
	"context"
	"errors"
	"strings"
	"testing"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/answers"
)

// A daemon of another version is refused with words, whichever of the two is the older, and whoever finds out.
func TestDaemonsOfOtherVersions(t *testing.T) {
	const words = "the client speaks versions 9 to 9, this daemon 1"
	const greeting = wire.Hello | wire.ReplyBit
	for name, answer := range map[string]struct {
		kind    wire.Type
		payload ipc.Payload
	}{
		"an older daemon refuses": {wire.Error, &wire.ErrorReply{Code: object.ErrVersion.Code(), Text: words}},
		"a newer daemon answers in its own version": {greeting,
			&wire.HelloReply{Version: wire.Version + 1, DaemonVersion: "9.0"}},
		"and in a layout that nobody knows yet": {greeting, answers.Raw([]byte{wire.Version + 1, 0, 1})},
		"an older daemon answers in its own": {greeting,
			&wire.HelloReply{Version: wire.LowestVersion - 1, DaemonVersion: "0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Dial(context.Background(), Options{Socket: answers.Greets(t, answer.kind, answer.payload)})
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, object.ErrVersion) || !strings.Contains(err.Error(), "version") {
				t.Errorf("%v", err)
			}
		})
	}
}
