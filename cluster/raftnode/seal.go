package raftnode

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// finishSeal ends what a crash or a full disk left half done. raft-wal seals a full segment by writing an index frame
// with the last batch, and enters the seal in its list later. Opened between the two, raft-wal 0.4.0 refuses every
// append ("segment is sealed") for ever; also when the index frame belongs to a batch that was never committed. So
// before it is opened: a committed seal is entered in the list, with the next segment; an uncommitted index frame is
// wiped, with the batch that it ended.
func finishSeal(dir string, list *segmentList) error {
	state, err := list.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return err
	}
	tail := &state.Segments[len(state.Segments)-1]
	if !tail.SealTime.IsZero() {
		return nil
	}
	w, err := segment.NewFiler(dir, walfs.New()).RecoverTail(*tail)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // raft-wal makes the file that its list promises
	}
	if err != nil {
		return err
	}
	sealed, indexStart, err := w.Sealed()
	last := w.LastIndex()
	if err = errors.Join(err, w.Close()); err != nil || !sealed {
		return err
	}
	path := filepath.Join(dir, segment.FileName(*tail))
	committed, err := sealCommitted(path, int64(indexStart)-frameHeaderBytes)
	if err != nil {
		return err
	}
	if !committed {
		return wipe(path, int64(indexStart)-frameHeaderBytes)
	}
	tail.SealTime, tail.MaxIndex, tail.IndexStart = time.Now(), last, indexStart
	next := types.SegmentInfo{ID: state.NextSegmentID, BaseIndex: last + 1, MinIndex: last + 1,
		SizeLimit: tail.SizeLimit, Codec: tail.Codec, CreateTime: time.Now()}
	state.NextSegmentID++
	state.Segments = append(state.Segments, next)
	return list.CommitState(state)
}

// raft-wal's frames (its segment/format.go): u8 type, 3 bytes zero, u32 length or CRC, payload padded to 8 bytes; the
// first after a file header of 32 bytes.
const (
	fileHeaderBytes  = 32
	frameHeaderBytes = 8
	frameIndex       = 2
	frameCommit      = 3
)

// sealCommitted reports whether the index frame at offset at is followed by a commit frame whose CRC-32C, over
// everything since the commit before, is right.
func sealCommitted(path string, at int64) (bool, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	begin := int64(0) // of the batch: behind the commit before, or the file's begin
	for off := int64(fileHeaderBytes); off >= 0 && off+frameHeaderBytes <= int64(len(raw)); {
		kind, value := raw[off], binary.LittleEndian.Uint32(raw[off+4:])
		if off > at {
			return kind == frameCommit && crc32.Checksum(raw[begin:off], castagnoli) == value, nil
		}
		if off == at && kind != frameIndex {
			return false, nil
		}
		off += frameHeaderBytes
		if kind == frameCommit {
			begin = off
			continue
		}
		off += (int64(value) + 7) &^ 7
	}
	return false, nil
}

// wipe makes the frame header at offset at the end of what is read.
func wipe(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, frameHeaderBytes), at)
	return errors.Join(err, f.Sync(), f.Close())
}
