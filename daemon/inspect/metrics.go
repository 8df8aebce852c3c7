package inspect

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"tendril/store/timing"
)

// text is an answer in Prometheus' text format 0.0.4. Two screens of code instead of a client library of 20 modules:
// the daemon counts for itself, and this only writes down.
type text string

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	helpEscape = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	textEscape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// metricsText writes the families down. One with a name that is none is left out: it would spoil the whole scrape.
func metricsText(families []Metric) text {
	var b strings.Builder
	for _, m := range families {
		if !metricName.MatchString(m.Name) {
			continue
		}
		kind := "gauge"
		switch {
		case m.Counter:
			kind = "counter"
		case m.Timed != nil:
			kind = "histogram"
		}
		b.WriteString("# HELP " + m.Name + " " + helpEscape.Replace(m.Help) + "\n# TYPE " + m.Name + " " + kind + "\n")
		for _, s := range m.Samples {
			writeSample(&b, m.Name, s.Labels, s.Value)
		}
		for _, t := range m.Timed {
			writeHistogram(&b, m.Name, t)
		}
	}
	return text(b.String())
}

// writeHistogram writes all of a histogram's buckets, each with all that are below it. An empty one is not left out:
// sums over several histograms would not rise with the bound any more.
func writeHistogram(b *strings.Builder, name string, t Timed) {
	labels := append(slices.Clone(t.Labels), "le", "+Inf")
	all, below := t.Took.Number(), uint64(0)
	for i := range timing.Buckets {
		below += t.Took.Counts[i]
		labels[len(labels)-1] = strconv.FormatFloat(timing.Bound(i).Seconds(), 'g', -1, 64)
		writeSample(b, name+"_bucket", labels, float64(below))
	}
	labels[len(labels)-1] = "+Inf"
	writeSample(b, name+"_bucket", labels, float64(all))
	writeSample(b, name+"_sum", t.Labels, t.Took.Total.Seconds())
	writeSample(b, name+"_count", t.Labels, float64(all))
}

func writeSample(b *strings.Builder, name string, labels []string, value float64) {
	b.WriteString(name)
	writeLabels(b, labels)
	b.WriteString(" " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

func writeLabels(b *strings.Builder, labels []string) {
	separator := "{"
	for i := 0; i+1 < len(labels); i += 2 {
		if !labelName.MatchString(labels[i]) {
			continue
		}
		b.WriteString(separator + labels[i] + `="` + textEscape.Replace(strings.ToValidUTF8(labels[i+1], "?")) + `"`)
		separator = ","
	}
	if separator == "," {
		b.WriteString("}")
	}
}

// count notes how a request was answered.
func (s *Server) count(ctx *fasthttp.RequestCtx) {
	if code := ctx.Response.StatusCode(); code > 0 && code < len(s.answered) {
		s.answered[code].Add(1)
	}
}

// metrics are of the doors themselves.
func (s *Server) metrics() []Metric {
	requests := Metric{Name: "tendril_http_requests_total", Counter: true, Help: "Requests over HTTP, by status."}
	for code := range s.answered {
		if n := s.answered[code].Load(); n > 0 {
			requests.Samples = append(requests.Samples, Sample{[]string{"code", strconv.Itoa(code)}, float64(n)})
		}
	}
	open := Metric{Name: "tendril_http_connections", Help: "Connections to each door of HTTP."}
	given := Metric{Name: "tendril_http_connections_dropped_total", Counter: true,
		Help: "HTTP connections that gave up their place or got none, by door."}
	for _, d := range s.doors {
		name := []string{"door", d.address.Network()}
		d.way.mu.Lock()
		open.Samples = append(open.Samples, Sample{name, float64(len(d.way.open))})
		given.Samples = append(given.Samples, Sample{name, float64(d.way.given)})
		d.way.mu.Unlock()
	}
	return []Metric{requests, open, given}
}
