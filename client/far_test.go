package client

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/answers"
)

// TestSSHCommand: what is run for an address, with nothing of it taken for an option or by a shell.
func TestSSHCommand(t *testing.T) {
	t.Setenv("TENDRIL_SSH", "")
	for server, want := range map[string][]string{
		"ssh://gpu1":                 {"ssh", "-T", "--", "gpu1", "'tendril' proxy"},
		"ssh://me@gpu1:2222":         {"ssh", "-T", "-p", "2222", "-l", "me", "--", "gpu1", "'tendril' proxy"},
		"ssh://[fe80::1]/opt/t/bin":  {"ssh", "-T", "--", "fe80::1", "'/opt/t/bin' proxy"},
		"ssh://h/a b;rm":             {"ssh", "-T", "--", "h", "'/a b;rm' proxy"},
		"ssh://h/it's":               {"ssh", "-T", "--", "h", `'/it'\''s' proxy`},
		"ssh://h/":                   {"ssh", "-T", "--", "h", "'tendril' proxy"},
		"ssh://h/%2e%2e/$(reboot)":   {"ssh", "-T", "--", "h", "'/../$(reboot)' proxy"},
		"ssh://user%20name@host.dom": {"ssh", "-T", "-l", "user name", "--", "host.dom", "'tendril' proxy"},
	} {
		if got, err := sshCommand(server); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", server, got, err)
		}
	}
	for _, bad := range []string{"ssh://", "ssh:///program", "ssh://-oProxyCommand=x", "ssh://-l@host", "ssh://h?x=1",
		"ssh://h#there", "ssh://h:port", "ssh://me:secret@h", "ssh://%zz", "ssh://@", "ssh://[::1"} {
		if got, err := sshCommand(bad); !errors.Is(err, object.ErrInvalid) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: %q, %v", bad, got, err)
		}
	}
}

// TestSSHThatDoesNotConnect: a program that ends, or says something else than a daemon, is an error that says so, and
// no process is left.
func TestSSHThatDoesNotConnect(t *testing.T) {
	dir := t.TempDir()
	for name, x := range map[string]struct {
		script string
		says   string
	}{
		"ends":     {"exit 7", "exit status 7"},
		"a banner": {"echo 'Welcome to this machine, which prints a banner'; cat >/dev/null", ""},
		"killed":   {"kill -9 $$", "killed"},
	} {
		program := filepath.Join(dir, "ssh")
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+x.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TENDRIL_SSH", program)
		c, err := DialServer(context.Background(), "ssh://nowhere", Options{})
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Setenv("TENDRIL_SSH", filepath.Join(dir, "no such program"))
	if _, err := DialServer(context.Background(), "ssh://nowhere", Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

// TestRepliesOfAnotherRelease: a daemon that answers otherwise than the protocol has it is an error, and not a wrong
// result.
func TestRepliesOfAnotherRelease(t *testing.T) {
	replies := map[wire.Type]ipc.Payload{
		wire.GPUs:         answers.Raw(`{"not":"a list"}`),
		wire.GetDevice:    &wire.DeviceReply{ID: object.ID{1}, SizeBytes: 1, Bytes: 1}, // and no descriptor
		wire.CreateDevice: answers.Raw("short"),
		wire.Replicate:    answers.Raw(`{"wanted":2}`),
		wire.Unpublish:    nil,
	}
	d := answers.New(t, 1, func(kind wire.Type, _ int) (wire.Type, ipc.Payload) {
		if reply, there := replies[kind]; there {
			return kind | wire.ReplyBit, reply
		}
		return wire.Error, &wire.ErrorReply{Code: object.ErrUnsupported.Code(), Text: "not in this test"}
	})
	c, err := Dial(context.Background(), Options{Socket: d.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for what, err := range map[string]error{
		"GPUs":         second(c.GPUs(context.Background())),
		"GetDevice":    second(c.GetDevice(t.Context(), object.ID{1}, "", 0)),
		"CreateDevice": second(c.CreateDevice(context.Background(), object.Device{1}, 1, CreateOptions{})),
	} {
		if !errors.Is(err, object.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if told, err := c.Replicate(t.Context(), object.ID{1}, "", ReplicateOptions{}); err != nil ||
		string(told) != `{"wanted":2}` {
		t.Errorf("%s, %v", told, err)
	}
	if err := c.UnpublishObject(context.Background(), object.ID{1}); err != nil {
		t.Error(err)
	}
	if c.Remote() {
		t.Error("a socket of this machine is remote")
	}
}

func second[T any](_ T, err error) error { return err }
