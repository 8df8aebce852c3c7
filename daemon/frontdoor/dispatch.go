package frontdoor

import (
	"fmt"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// row is one message's policy and handler.
type row struct {
	// beforeHello: allowed as the first message, and only then.
	beforeHello bool
	// oneWay: request 0 is the normal form. Others need a request number.
	oneWay bool
	// mutates: not done any more once the process that opened the connection has ended.
	mutates bool
	// session: needs an open session.
	session bool
	// local: passes a descriptor, or makes sense only beside one: not for peers on another machine.
	local bool
	// admin: for root and the daemon's own user, on this machine.
	admin bool
	// slow: may wait for something else than the store's lock, so mu is not held and earlier replies go out first.
	slow bool
	// atOnce says whether the request at hand waits for nothing: then the poller does it. nil: it may.
	atOnce func(*connection, *ipc.Frame) bool
	// maxPayload bounds the request in bytes; ipc.MaxPayload bounds all.
	maxPayload uint32
	handle     func(*connection, *ipc.Frame) error
}

const (
	idBytes    = object.IDBytes
	stringMax  = 2 + object.MaxNameBytes + 1 // a byte more than allowed, so that the store can say what is wrong
	metaMax    = 4 + object.MaxMetaBytes + 1
	optionsMax = 64 << 10
	requestMax = 4 + 4096 // a certificate request
	pageMax    = 4 + 2 + wire.MaxCursor
	labelsMax  = 2 + (object.MaxLabels+1)*2*(2+object.MaxLabelBytes+1)
)

// rows is the dispatch table, made once a process and never changed.
var rows = map[wire.Type]row{
	wire.Hello:            {beforeHello: true, maxPayload: 10 + 256, handle: (*connection).hello},
	wire.Create:           {local: true, mutates: true, atOnce: createsAtOnce, maxPayload: 10 + stringMax + metaMax, handle: (*connection).create},
	wire.Seal:             {mutates: true, atOnce: sealsAtOnce, maxPayload: idBytes + 1, handle: (*connection).seal},
	wire.Get:              {local: true, atOnce: always, maxPayload: idBytes + stringMax + 4, handle: (*connection).get},
	wire.Release:          {oneWay: true, atOnce: releasesAtOnce, maxPayload: idBytes, handle: (*connection).release},
	wire.Delete:           {mutates: true, slow: true, atOnce: deletesAtOnce, maxPayload: idBytes + stringMax, handle: (*connection).delete},
	wire.Abort:            {mutates: true, maxPayload: idBytes, handle: (*connection).abort},
	wire.List:             {slow: true, maxPayload: stringMax + 1, handle: (*connection).list},
	wire.Stat:             {maxPayload: idBytes + stringMax, handle: (*connection).stat},
	wire.Status:           {slow: true, maxPayload: 0, handle: (*connection).status},
	wire.Devices:          {slow: true, maxPayload: 0, handle: (*connection).devices},
	wire.Bind:             {mutates: true, maxPayload: idBytes + stringMax + 1, handle: (*connection).bind},
	wire.Forget:           {local: true, oneWay: true, maxPayload: 8, handle: (*connection).forget},
	wire.Sweep:            {local: true, maxPayload: 0, handle: (*connection).sweep},
	wire.OpenSession:      {mutates: true, slow: true, maxPayload: 2 + 256 + 4 + optionsMax, handle: (*connection).openSession},
	wire.OpenWorker:       {local: true, mutates: true, slow: true, session: true, maxPayload: 4, handle: (*connection).openWorker},
	wire.AllocSegment:     {local: true, mutates: true, session: true, maxPayload: 8, handle: (*connection).allocSegment},
	wire.FreeSegment:      {local: true, oneWay: true, session: true, maxPayload: 8, handle: (*connection).freeSegment},
	wire.PublishSegment:   {local: true, mutates: true, session: true, maxPayload: 18 + stringMax + metaMax, handle: (*connection).publishSegment},
	wire.CloseWorker:      {oneWay: true, session: true, slow: true, maxPayload: 8, handle: (*connection).closeWorker},
	wire.ReserveDevice:    {oneWay: true, session: true, maxPayload: 16, handle: (*connection).reserveDevice},
	wire.OpenRemoteWorker: {mutates: true, slow: true, session: true, maxPayload: 38, handle: (*connection).openRemoteWorker},
	wire.KeepSession:      {session: true, maxPayload: 8, handle: (*connection).keepSessionFor},
	wire.ResumeSession:    {mutates: true, slow: true, maxPayload: 40, handle: (*connection).resumeSession},
	wire.ResumeWorker:     {session: true, mutates: true, slow: true, maxPayload: 9, handle: (*connection).resumeWorker},
	wire.LeaveSession:     {oneWay: true, session: true, maxPayload: 0, handle: (*connection).leaveSession},
	wire.AttachObject:     {session: true, maxPayload: 16 + idBytes + stringMax, handle: (*connection).attachObject},
	wire.Publish:          {mutates: true, slow: true, maxPayload: idBytes + stringMax + 1, handle: (*connection).publish},
	wire.Unpublish:        {mutates: true, slow: true, maxPayload: idBytes + stringMax, handle: (*connection).unpublish},
	wire.Published:        {slow: true, maxPayload: stringMax + 1, handle: (*connection).listPublished},
	wire.CreateToken:      {admin: true, slow: true, maxPayload: 12 + 256, handle: (*connection).createToken},
	wire.Tokens:           {admin: true, slow: true, maxPayload: 0, handle: (*connection).tokens},
	wire.RevokeToken:      {admin: true, slow: true, maxPayload: idBytes + 1, handle: (*connection).revokeToken},
	wire.OpenPage:         {local: true, slow: true, maxPayload: 0, handle: (*connection).openPage},
	wire.Enroll:           {maxPayload: enrollMax, handle: (*connection).enrolled},
	wire.Renew:            {slow: true, maxPayload: requestMax, handle: (*connection).renew},
	wire.Upload:           {mutates: true, maxPayload: 10 + stringMax + metaMax + 8 + labelsMax, handle: (*connection).uploading},
	wire.Write:            {mutates: true, maxPayload: ipc.MaxPayload, handle: (*connection).write},
	wire.Hold:             {maxPayload: idBytes + stringMax + 4, handle: (*connection).hold},
	wire.WorkerFate:       {slow: true, session: true, maxPayload: 8, handle: (*connection).workerFate},
	wire.CreateWith:       {local: true, mutates: true, maxPayload: 10 + stringMax + metaMax + 8 + labelsMax, handle: (*connection).createWith},
	wire.Update:           {mutates: true, maxPayload: idBytes + stringMax + 9 + labelsMax, handle: (*connection).update},
	wire.Grant:            {mutates: true, maxPayload: idBytes + stringMax + 1 + 2 + 64, handle: (*connection).grant},
	wire.ListWhere:        {slow: true, maxPayload: stringMax + 2 + labelsMax, handle: (*connection).listWhere},
	wire.Rename:           {mutates: true, maxPayload: 2*stringMax + 1, handle: (*connection).rename},
	wire.AwaitMany:        {maxPayload: ipc.MaxPayload, handle: (*connection).awaitMany},
	wire.Checksum:         {slow: true, maxPayload: idBytes + stringMax, handle: (*connection).checksum},
	wire.ReadRange:        {slow: true, maxPayload: idBytes + stringMax + 12, handle: (*connection).readRange},
	wire.Watch:            {maxPayload: stringMax, handle: (*connection).watch},
	wire.OpenIndex:        {local: true, slow: true, maxPayload: 0, handle: (*connection).openIndex},
	wire.IndexLevel:       {local: true, maxPayload: 1, handle: (*connection).indexLevel},
	wire.Top:              {slow: true, maxPayload: 8, handle: (*connection).top},
	wire.StreamOpen:       {local: true, mutates: true, maxPayload: 13 + stringMax, handle: (*connection).streamOpen},
	wire.StreamPush:       {local: true, mutates: true, atOnce: pushesAtOnce, maxPayload: 8 + idBytes + 5 + metaMax, handle: (*connection).streamPush},
	wire.StreamPop:        {local: true, mutates: true, atOnce: always, maxPayload: 12, handle: (*connection).streamPop},
	wire.StreamEnd:        {local: true, mutates: true, maxPayload: 9, handle: (*connection).streamEnd},
	wire.StreamClose:      {local: true, oneWay: true, maxPayload: 8, handle: (*connection).streamClose},
	wire.StreamUnpop:      {local: true, oneWay: true, mutates: true, atOnce: always, maxPayload: 8 + idBytes + 8, handle: (*connection).streamUnpop},
	wire.StreamList:       {slow: true, maxPayload: stringMax, handle: (*connection).streamList},
	wire.StreamCancel:     {local: true, maxPayload: 8, handle: (*connection).streamCancel},
	wire.Fill:             {local: true, mutates: true, maxPayload: idBytes + stringMax, handle: (*connection).fill},
	wire.Filled:           {local: true, oneWay: true, maxPayload: idBytes, handle: (*connection).filled},
	wire.SealFilled:       {local: true, mutates: true, maxPayload: idBytes + 6, handle: (*connection).sealFilled},
	wire.Compose:          {mutates: true, maxPayload: composeMax, handle: (*connection).compose},
	wire.Reclaim:          {local: true, maxPayload: 2 + wire.MaxClaims*(idBytes+8), handle: (*connection).reclaim},
	wire.Takeover:         {local: true, admin: true, slow: true, maxPayload: 4, handle: (*connection).takeover},
	wire.Hurry:            {oneWay: true, maxPayload: 0, atOnce: always, handle: (*connection).hurry},
	wire.OfferPeer:        {mutates: true, slow: true, session: true, maxPayload: 18, handle: (*connection).offerPeer},
	wire.DialPeer:         {mutates: true, session: true, maxPayload: 20 + wire.MaxOffer, handle: (*connection).dialPeer},
	wire.PairPeers:        {mutates: true, slow: true, session: true, maxPayload: 25, handle: (*connection).pairPeers},
	wire.TellPeer:         {oneWay: true, mutates: true, slow: true, session: true, maxPayload: 21 + 2*wire.MaxPeerText, handle: (*connection).tellPeer},
	wire.Peers:            {admin: true, slow: true, maxPayload: 0, handle: (*connection).listPeers},
	wire.SetPeer:          {admin: true, slow: true, maxPayload: 34 + 256, handle: (*connection).setPeer},
	wire.EndSession:       {local: true, mutates: true, slow: true, maxPayload: 8, handle: (*connection).endSession},
	wire.ListPage:         {slow: true, maxPayload: stringMax + 2 + labelsMax + pageMax, handle: (*connection).listPage},
	wire.StreamPage:       {slow: true, maxPayload: stringMax + pageMax, handle: (*connection).streamPage},
	wire.PublishedPage:    {slow: true, maxPayload: stringMax + pageMax, handle: (*connection).publishedPage},
	wire.TokenPage:        {admin: true, slow: true, maxPayload: stringMax + pageMax, handle: (*connection).tokenPage},
	wire.PeerPage:         {admin: true, slow: true, maxPayload: stringMax + pageMax, handle: (*connection).peerPage},
	wire.TopPage:          {slow: true, maxPayload: stringMax + pageMax, handle: (*connection).topPage},
	wire.SessionPage:      {slow: true, maxPayload: stringMax + pageMax, handle: (*connection).sessionPage},
	wire.Scrub:            {slow: true, maxPayload: 2 + wire.MaxScrubPlace, handle: (*connection).scrub},
	wire.StreamRemove:     {mutates: true, maxPayload: idBytes + stringMax, handle: (*connection).streamRemove},
}

// act does what one frame asks. A returned error ends the connection; a request's own failure is answered instead.
func (c *connection) act(f *ipc.Frame) error {
	row, known := rows[f.Type]
	c.wanted = c.wanted || f.Flags&ipc.FlagLazy == 0
	err := c.check(f, row, known)
	fatal := err != nil
	if !fatal {
		err = c.run(f, row, known)
		fatal = object.CodeOf(err) == object.ErrProtocol.Code() || row.beforeHello
	}
	switch {
	case err == nil:
		return nil
	case fatal:
		return &breach{request: f.Request, error: err}
	}
	if f.Request != 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out = errorFrame(c.out, f.Request, err)
	}
	return nil
}

// check keeps the rules whose breach ends the connection.
func (c *connection) check(f *ipc.Frame, row row, known bool) error {
	greeted := c.store != nil
	f.CloseFDs()
	switch {
	case f.Flags&^ipc.FlagLazy != 0:
		return fmt.Errorf("%w: %v with flags 0x%x: a request has none, and the daemon takes no descriptor", object.ErrProtocol, f.Type, f.Flags)
	case !greeted && !row.beforeHello:
		return fmt.Errorf("%w: %v before Hello", object.ErrProtocol, f.Type)
	case greeted && row.beforeHello:
		return fmt.Errorf("%w: a second %v", object.ErrProtocol, f.Type)
	case !known:
		return nil
	case f.Length > row.maxPayload:
		return fmt.Errorf("%w: %v of %d bytes, at most %d", object.ErrProtocol, f.Type, f.Length, row.maxPayload)
	case f.Request == 0 && !row.oneWay:
		return fmt.Errorf("%w: %v with request number 0, but it has a reply", object.ErrProtocol, f.Type)
	}
	return nil
}

// run calls the handler as its row asks.
func (c *connection) run(f *ipc.Frame, row row, known bool) error {
	switch {
	case !known:
		return fmt.Errorf("%w: %v is unknown to this daemon: is it older than its client?", object.ErrUnsupported, f.Type)
	case row.mutates && c.ctx.Err() != nil:
		return fmt.Errorf("%w: the process that opened the connection has ended", object.ErrPermission)
	case f.Type == wire.OpenPage && c.peer.Remote != "":
		return fmt.Errorf("%w: %v from another machine: keys to the page are given out on the daemon's own", object.ErrUnsupported, f.Type)
	case row.local && c.peer.Remote != "":
		return fmt.Errorf("%w: %v from another machine: shared memory ends at the network", object.ErrUnsupported, f.Type)
	case row.admin && !c.peer.Admin:
		return fmt.Errorf("%w: tokens are for root and the daemon's own user, on its machine", object.ErrPermission)
	case row.mutates && c.peer.Role != pki.User:
		return fmt.Errorf("%w: %v with a certificate of role %v: log in with a token of role user", object.ErrPermission, f.Type, c.peer.Role)
	case row.session && !c.inSession():
		return fmt.Errorf("%w: %v outside a session: OpenSession comes first", object.ErrInvalid, f.Type)
	}
	c.mu.Lock()
	if !row.slow {
		defer c.mu.Unlock()
		return row.handle(c, f)
	}
	err := c.flush()
	c.mu.Unlock()
	if err != nil {
		return nil // loop meets sendErr at its next flush
	}
	defer c.sayWorking(f.Request)()
	return row.handle(c, f)
}
