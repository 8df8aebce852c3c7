package raftnode

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/sirupsen/logrus"
)

// bridge has raft's lines come out of log, level by level, none below level. raft's own default is DEBUG.
func bridge(log logrus.FieldLogger, level logrus.Level) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclogLevel(level), Output: io.Discard})
	l.RegisterSink(sink{log, hclogLevel(level), &peerLines{last: map[string]time.Time{}}})
	return l
}

func hclogLevel(l logrus.Level) hclog.Level {
	switch l {
	case logrus.TraceLevel:
		return hclog.Trace
	case logrus.DebugLevel:
		return hclog.Debug
	case logrus.InfoLevel:
		return hclog.Info
	case logrus.WarnLevel:
		return hclog.Warn
	}
	return hclog.Error
}

// sink writes hclog's lines to a logrus logger.
type sink struct {
	log   logrus.FieldLogger
	level hclog.Level
	peers *peerLines
}

// aboutPeers are raft's errors that say no more than that another node cannot be reached. They are warnings here, and a
// leader would write one each half second.
var aboutPeers = []string{"failed to heartbeat to", "failed to appendEntries to", "failed to pipeline appendEntries",
	"failed to start pipeline replication to", "failed to make requestVote RPC", "failed to send snapshot to",
	"failed to install snapshot"}

// aboutEnds are raft's errors at the end of a connection, which is the end that a node's own makes, too.
var aboutEnds = []string{"failed to decode incoming command", "failed to flush response"}

// peerEvery is how often one of them is written about one node.
const peerEvery = time.Minute

// peerLines is when each was written last. Raft's configuration bounds the nodes.
type peerLines struct {
	mu   sync.Mutex // a leaf
	last map[string]time.Time
}

// due reports whether a line is to be written.
func (p *peerLines) due(line string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for other, at := range p.last {
		if time.Since(at) >= peerEvery {
			delete(p.last, other)
		}
	}
	if _, written := p.last[line]; written {
		return false
	}
	p.last[line] = time.Now()
	return true
}

// Accept writes one line; args are keys and values in turn.
func (s sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	if level < s.level {
		return
	}
	fields := logrus.Fields{"component": name}
	for i := 0; i+1 < len(args); i += 2 {
		fields[fmt.Sprint(args[i])] = fmt.Sprintf("%v", hclogValue(args[i+1]))
	}
	out := s.log.WithFields(fields)
	switch {
	case slices.Contains(aboutEnds, msg):
		out.Debug(msg)
	case slices.Contains(aboutPeers, msg):
		if s.peers.due(fmt.Sprint(msg, " ", fields["peer"], fields["target"])) {
			out.Warn(msg)
		}
	case level >= hclog.Error:
		out.Error(msg)
	case level == hclog.Warn:
		out.Warn(msg)
	case level == hclog.Info:
		out.Info(msg)
	default:
		out.Debug(msg)
	}
}

// hclogValue turns hclog.Fmt's pair of format and arguments into text.
func hclogValue(v any) any {
	if f, ok := v.(hclog.Format); ok && len(f) > 0 {
		return fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
	}
	return v
}

func silent() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}
