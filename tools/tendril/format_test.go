package main

import (
	"testing"

	"tendril/daemon"
)

// What a terminal acts on or hides is shown, so that no name looks like another one, or alters what stands around it.
func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"résumé 日本 🦀 e\u0301":    "résumé 日本 🦀 e\u0301",
		"a\x1b[2Jb":              `a\x1b[2Jb`,
		"a\nb\tc\x7f":            `a\nb\tc\x7f`,
		"a\u009b31mb":            `a\u009b31mb`,
		"txt.\u202egnp.exe":      `txt.\u202egnp.exe`,
		"\u2066a\u2069\u200f":    `\u2066a\u2069\u200f`,
		"pass\u200bword\ufeff":   `pass\u200bword\ufeff`,
		"a\u00adb\u2028c":        `a\u00adb\u2028c`,
		"\U000e0041\u061c\u180e": `\U000e0041\u061c\u180e`,
		"broken \xff":            "broken \xff",
	} {
		if got := plain(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
		if got := plain(plain(in)); got != plain(in) {
			t.Errorf("%q shown twice is %q", in, got)
		}
	}
	if got := plainLines("a\u202e\nb"); got != `a\u202e`+"\nb" {
		t.Errorf("lines: %q", got)
	}
}

func TestSettingsWithoutALimit(t *testing.T) {
	for _, key := range []string{"kernel-time", "build-time", "lease-time"} {
		if got := settingText(daemon.Shown{Key: key, Value: "0s"}); got != "no limit" {
			t.Errorf("%s: %s", key, got)
		}
	}
}
