package inspect

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"strings"
)

//go:embed ui.html
var uiHTML string

//go:embed ui.css
var uiCSS string

//go:embed ui.js
var uiJS string

// page is the one page, in one piece, with the policy that lets nothing but its own script and style run and nothing
// but this node be asked (Content Security Policy Level 3).
type page struct {
	html   []byte
	policy string
}

func buildPage() page {
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	html := strings.NewReplacer("/*CSS*/", uiCSS, "/*JS*/", uiJS).Replace(uiHTML)
	policy := "default-src 'none'; script-src " + hash(uiJS) + "; style-src " + hash(uiCSS) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return page{html: []byte(html), policy: policy}
}
