package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"tendril/store/object"
)

func TestBackupsAreEncrypted(t *testing.T) {
	secret := []byte(`{"key":"a secret"}`)
	sealed, err := encrypt(secret, "right")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.age")
	for _, x := range []struct {
		name       string
		content    []byte
		passphrase string
		is         error
	}{
		{"right", sealed, "right", nil},
		{"another passphrase", sealed, "wrong", object.ErrPermission},
		{"cut", sealed[:len(sealed)-1], "right", object.ErrInvalid},
		{"not encrypted", secret, "right", object.ErrInvalid},
		{"empty", nil, "right", object.ErrInvalid},
	} {
		if err := os.WriteFile(path, x.content, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := decrypt(path, x.passphrase)
		if !errors.Is(err, x.is) || err == nil && string(got) != string(secret) {
			t.Errorf("%s: %q, %v", x.name, got, err)
		}
	}
}
