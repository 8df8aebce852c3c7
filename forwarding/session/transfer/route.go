package transfer

import "fmt"

// Way is a way that a transfer goes.
type Way uint8

const (
	None Way = iota
	Marker
	Inline
	InlineAsync
	Stream
	Lanes
	Direct
	Chunks
	ChunkRead
	StagedRead
	StagedWrite
	CopyNow
	CopyInTurn
	CopyLater
	wayCount = iota
)

// ways are the names and meanings, as the documents have them.
var ways = [wayCount]struct{ name, meaning string }{
	None:   {"none", "nothing is sent, and the command has ended"},
	Marker: {"marker", "a marker takes the command's place in its queue"},
	Inline: {"inline", "the bytes are in the command's record"},
	InlineAsync: {"inline async",
		"as inline, and the blocking call returns once the record is sent; commands of other queues wait for it"},
	Stream: {"stream", "the bytes follow the command's record on the control stream, or come back on it"},
	Lanes:  {"lanes", "chunks of up to 256 KiB over every lane at once; writes up to 4 MiB ahead of their turn"},
	Direct: {"direct", "the device copies from or to the memory that the program sees"},
	Chunks: {"chunks", "the calling thread copies through chunks of the staging pool, several of them in flight"},
	ChunkRead: {"chunk read",
		"the device copies to one chunk of the staging pool, and then the calling thread to the program"},
	StagedRead: {"staged read",
		"the device copies to staging memory, and this side to the program when it hears of the end"},
	StagedWrite: {"staged write", "the call copies to staging memory, and the device from there when its turn comes"},
	CopyNow:     {"copy now", "the calling thread copies, without a message"},
	CopyInTurn:  {"copy in turn", "the calling thread copies when the worker says that the command's turn has come"},
	CopyLater:   {"copy later", "a goroutine copies when the worker says so, and the call returns at once"},
}

// Choice is a way and why it is taken.
type Choice struct {
	Way Way
	Why string
}

// row is one row of the table: the facts that hold, and those that do not.
type row struct {
	is, not fact
	Choice
}

// elsewhere is what no copy by this side in the command's place is.
const elsewhere = nothing | own | remote | record | pinned | staged

// rows is the table. Exactly one row matches any request; the order means nothing.
var rows = [...]row{
	{nothing | free, 0, Choice{None, "there is nothing to do and nothing to wait for"}},
	{nothing, free | blocking | awaited, Choice{None, "nobody can see when it runs"}},
	{nothing | awaited, free | blocking, Choice{Marker, "somebody can see when it ends"}},
	{nothing | blocking, free, Choice{CopyInTurn, "the call returns when the commands before it have ended"}},

	{record | unseen, 0, Choice{InlineAsync, "a round trip would only bring the news that the write ended"}},
	{record, unseen, Choice{Inline, "one message, and no wait for a write that does not block"}},
	{remote | stream, nothing | record, Choice{Stream, "both ends poll this stream; a lane wakes four threads"}},
	{remote, nothing | record | stream,
		Choice{Lanes, "several connections carry more, and commands overtake the bytes"}},

	{pinned, nothing, Choice{Direct, "one command of the device's, and no copy by this side"}},
	{own | device, nothing, Choice{Chunks, "copies of this side's and of the device's overlap"}},
	{own, nothing | device | remote, Choice{CopyNow, "the memory is mapped here"}},
	{staged | read | blocking, record,
		Choice{ChunkRead, "one wait for the commands before it and the transfer together"}},
	{staged | read, record | blocking,
		Choice{StagedRead, "the queue does not stop for a message and a wake-up each way"}},
	{staged, record | read, Choice{StagedWrite, "the queue does not stop for a message and a wake-up each way"}},

	{free | blocking, elsewhere, Choice{CopyNow, "nothing comes before it"}},
	{free | brief, elsewhere | blocking,
		Choice{CopyNow, "nothing comes before it, and a goroutine's start costs more"}},
	{blocking, elsewhere | free, Choice{CopyInTurn, "one copy, once the commands before it have ended"}},
	{0, elsewhere | blocking | free,
		Choice{CopyLater, "one copy, once the commands before it have ended; the call returns"}},
	{free, elsewhere | blocking | brief, Choice{CopyLater, "the call does not wait for a long copy"}},
}

// matches says whether the row is for such facts.
func (x *row) matches(f fact) bool { return f&(x.is|x.not) == x.is }

// Route chooses the way of a transfer. Where staging memory turns out to be in use when a way is carried out, or a
// write to be visible, the caller notes so in the request and asks again; these are facts that no look beforehand can
// settle.
func Route(r *Request) Choice {
	f := r.facts()
	for i := range rows {
		if rows[i].matches(f) {
			return rows[i].Choice
		}
	}
	panic(fmt.Sprintf("transfer: no way for %+v", *r)) // a test tries every request
}
