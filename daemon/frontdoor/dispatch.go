package frontdoor

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
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
	// node: for the other nodes of the cluster alone.
	node bool
	// slow: may wait for something else than the store's lock, so mu is not held and earlier replies go out first.
	slow bool
	// pages: takes long for what there is and waits for nothing else meanwhile: its turn is connection.compute.
	pages bool
	// atOnce says whether the request at hand waits for nothing, or says store.ErrWouldWait instead, which only acts
	// on the poller does: then the poller does it. nil: it may wait.
	atOnce func(*connection, *ipc.Frame) bool
	// maxPayload bounds the request in bytes; ipc.MaxPayload bounds all.
	maxPayload uint32

	// One of the two decodes the request and does it, with mu held unless the row is slow. handle sends the reply
	// itself, at once or later. answer gives the reply's payload, which run sends: nil for an empty one, long for one
	// that may take several frames.
	handle func(*connection, *ipc.Frame) error
	answer func(*connection, *ipc.Frame) (ipc.Payload, error)
}

const (
	idBytes     = object.IDBytes
	stringMax   = 2 + 1<<16 - 1 // whatever a text's length can say, so that the store can say what is wrong
	metaMax     = 4 + object.MaxMetaBytes + 1
	optionsMax  = 64 << 10
	requestMax  = 4 + 4096 // a certificate request
	pageMax     = 4 + 2 + wire.MaxCursor
	auditCursor = 256 << 10 // a number of each series of each node
	labelsMax   = 2 + (object.MaxLabels+1)*2*(2+object.MaxLabelBytes+1)
)

// rows is the dispatch table, made once a process and never changed.
var rows = map[wire.Type]row{
	wire.Hello: {beforeHello: true, atOnce: always, maxPayload: 10 + 256,
		answer: answers((*connection).hello)},
	wire.Create: {local: true, mutates: true, atOnce: always, maxPayload: 10 + stringMax + metaMax,
		handle: on((*connection).create)},
	wire.Put: {local: true, mutates: true, atOnce: always,
		maxPayload: 2 + stringMax + metaMax + 8 + labelsMax + 4 + wire.MaxPutBytes, handle: on((*connection).put)},
	wire.Seal: {mutates: true, atOnce: always, maxPayload: idBytes + 1,
		answer: done((*connection).seal)},
	wire.Get: {local: true, atOnce: always, maxPayload: idBytes + stringMax + 4,
		handle: on((*connection).get)},
	wire.Release: {oneWay: true, atOnce: always, maxPayload: idBytes,
		answer: done((*connection).release)},
	wire.Delete: {mutates: true, slow: true, atOnce: whether(byItself), maxPayload: idBytes + stringMax,
		answer: done((*connection).delete)},
	wire.Abort:   {mutates: true, atOnce: always, maxPayload: idBytes, answer: done((*connection).abort)},
	wire.List:    {pages: true, slow: true, maxPayload: stringMax + 1, handle: lists((*connection).list)},
	wire.Stat:    {atOnce: always, maxPayload: idBytes + stringMax, handle: on((*connection).stat)},
	wire.Status:  {pages: true, slow: true, maxPayload: 0, answer: answers((*connection).status)},
	wire.Devices: {slow: true, maxPayload: 0, answer: answers((*connection).devices)},
	wire.Bind:    {mutates: true, maxPayload: idBytes + stringMax + 1, answer: done((*connection).bind)},
	wire.Forget:  {local: true, oneWay: true, maxPayload: 8, answer: done((*connection).forget)},
	wire.Sweep:   {local: true, maxPayload: 0, answer: answers((*connection).sweep)},
	wire.OpenSession: {mutates: true, slow: true, maxPayload: 2 + 256 + 4 + optionsMax,
		answer: answers((*connection).openSession)},
	wire.OpenWorker: {local: true, mutates: true, slow: true, session: true, maxPayload: 4,
		handle: on((*connection).openWorker)},
	wire.AllocSegment: {local: true, mutates: true, session: true, maxPayload: 8,
		handle: on((*connection).allocSegment)},
	wire.FreeSegment: {local: true, oneWay: true, session: true, maxPayload: 8,
		answer: done((*connection).freeSegment)},
	wire.PublishSegment: {local: true, mutates: true, session: true, maxPayload: 18 + stringMax + metaMax,
		answer: answers((*connection).publishSegment)},
	wire.CloseWorker: {oneWay: true, session: true, slow: true, maxPayload: 8,
		answer: done((*connection).closeWorker)},
	wire.ReserveDevice: {oneWay: true, session: true, maxPayload: 16,
		answer: done((*connection).reserveDevice)},
	wire.OpenRemoteWorker: {mutates: true, slow: true, session: true, maxPayload: 38,
		answer: answers((*connection).openRemoteWorker)},
	wire.KeepSession: {session: true, maxPayload: 8, answer: answers((*connection).keepSessionFor)},
	wire.ResumeSession: {mutates: true, slow: true, maxPayload: 40,
		answer: done((*connection).resumeSession)},
	wire.ResumeWorker: {session: true, mutates: true, slow: true, maxPayload: 9,
		answer: answers((*connection).resumeWorker)},
	wire.LeaveSession: {oneWay: true, session: true, maxPayload: 0, answer: done((*connection).leaveSession)},
	wire.AttachObject: {session: true, maxPayload: 16 + idBytes + stringMax,
		handle: on((*connection).attachObject)},
	wire.Publish: {mutates: true, slow: true, maxPayload: idBytes + stringMax + 1,
		answer: withCluster((*connection).publish)},
	wire.Unpublish: {mutates: true, slow: true, maxPayload: idBytes + stringMax,
		answer: withCluster((*connection).unpublish)},
	wire.Published: {pages: true, slow: true, maxPayload: stringMax + 1, handle: lists((*connection).listPublished)},
	wire.CreateToken: {admin: true, slow: true, maxPayload: 12 + 256,
		answer: withCluster((*connection).createToken)},
	wire.Tokens: {pages: true, admin: true, slow: true, maxPayload: 0, handle: lists((*connection).tokens)},
	wire.RevokeToken: {admin: true, slow: true, maxPayload: idBytes + 1,
		answer: withCluster((*connection).revokeToken)},
	wire.OpenPage: {local: true, slow: true, maxPayload: 0, answer: withCluster((*connection).openPage)},
	wire.Enroll:   {maxPayload: enrollMax, handle: (*connection).enrolled},
	wire.Renew:    {slow: true, maxPayload: requestMax, answer: withCluster((*connection).renew)},
	wire.Upload: {mutates: true, maxPayload: 10 + stringMax + metaMax + 8 + labelsMax,
		answer: answers((*connection).uploading)},
	wire.Write:      {mutates: true, maxPayload: ipc.MaxPayload, answer: done((*connection).write)},
	wire.Hold:       {maxPayload: idBytes + stringMax + 4, handle: on((*connection).hold)},
	wire.WorkerFate: {session: true, maxPayload: 8, handle: on((*connection).workerFate)},
	wire.CreateWith: {local: true, mutates: true, maxPayload: 10 + stringMax + metaMax + 8 + labelsMax,
		handle: on((*connection).createWith)},
	wire.Update: {mutates: true, maxPayload: idBytes + stringMax + 9 + labelsMax,
		answer: done((*connection).update)},
	wire.Grant: {mutates: true, maxPayload: idBytes + stringMax + 1 + 2 + 64,
		answer: done((*connection).grant)},
	wire.ListWhere: {pages: true, slow: true, maxPayload: stringMax + 2 + labelsMax,
		handle: lists((*connection).listWhere)},
	wire.Rename:     {mutates: true, maxPayload: 2*stringMax + 1, answer: done((*connection).rename)},
	wire.AwaitMany:  {maxPayload: ipc.MaxPayload, handle: on((*connection).awaitMany)},
	wire.Checksum:   {slow: true, maxPayload: idBytes + stringMax, answer: answers((*connection).checksum)},
	wire.ReadRange:  {slow: true, maxPayload: idBytes + stringMax + 12, handle: on((*connection).readRange)},
	wire.Watch:      {maxPayload: stringMax, handle: on((*connection).watch)},
	wire.OpenIndex:  {local: true, slow: true, maxPayload: 0, handle: on((*connection).openIndex)},
	wire.IndexLevel: {local: true, maxPayload: 1, handle: on((*connection).indexLevel)},
	wire.Top:        {pages: true, slow: true, maxPayload: 8, handle: lists((*connection).top)},
	wire.StreamOpen: {local: true, mutates: true, maxPayload: 13 + stringMax,
		answer: answers((*connection).streamOpen)},
	wire.StreamPush: {local: true, mutates: true, atOnce: always, maxPayload: 8 + idBytes + 5 + metaMax,
		handle: on((*connection).streamPush)},
	wire.StreamPop: {local: true, mutates: true, atOnce: always, maxPayload: 12,
		handle: on((*connection).streamPop)},
	wire.StreamEnd:   {local: true, mutates: true, maxPayload: 9, answer: done((*connection).streamEnd)},
	wire.StreamClose: {local: true, oneWay: true, maxPayload: 8, answer: done((*connection).streamClose)},
	wire.StreamUnpop: {local: true, oneWay: true, mutates: true, atOnce: always, maxPayload: 8 + idBytes + 8,
		answer: done((*connection).streamUnpop)},
	wire.StreamList:   {pages: true, slow: true, maxPayload: stringMax, handle: lists((*connection).streamList)},
	wire.StreamCancel: {local: true, maxPayload: 8, answer: done((*connection).streamCancel)},
	wire.Fill:         {local: true, mutates: true, maxPayload: idBytes + stringMax, handle: on((*connection).fill)},
	wire.Filled:       {local: true, oneWay: true, maxPayload: idBytes, answer: done((*connection).filled)},
	wire.SealFilled: {local: true, mutates: true, maxPayload: idBytes + 6,
		handle: on((*connection).sealFilled)},
	wire.Compose: {mutates: true, maxPayload: composeMax, answer: answers((*connection).compose)},
	wire.Reclaim: {local: true, maxPayload: 2 + wire.MaxClaims*(idBytes+8),
		answer: answers((*connection).reclaim)},
	wire.Takeover: {local: true, admin: true, slow: true, maxPayload: 4, handle: on((*connection).takeover)},
	wire.Hurry:    {oneWay: true, maxPayload: 0, atOnce: always, answer: done((*connection).hurry)},
	wire.OfferPeer: {mutates: true, slow: true, session: true, maxPayload: 18,
		answer: withPeers((*connection).offerPeer)},
	wire.DialPeer: {mutates: true, session: true, maxPayload: 20 + wire.MaxOffer,
		handle: on((*connection).dialPeer)},
	wire.PairPeers: {mutates: true, slow: true, session: true, maxPayload: 25,
		answer: withPeers((*connection).pairPeers)},
	wire.TellPeer: {oneWay: true, mutates: true, slow: true, session: true, maxPayload: 21 + 2*wire.MaxPeerText,
		answer: withPeers((*connection).tellPeer)},
	wire.Peers:   {admin: true, slow: true, maxPayload: 0, answer: withPeers((*connection).listPeers)},
	wire.SetPeer: {admin: true, slow: true, maxPayload: 34 + 256, answer: withPeers((*connection).setPeer)},
	wire.EndSession: {local: true, mutates: true, slow: true, maxPayload: 8,
		answer: done((*connection).endSession)},
	wire.ListPage: {pages: true, slow: true, maxPayload: stringMax + 2 + labelsMax + pageMax,
		handle: on((*connection).listPage)},
	wire.AllPage: {pages: true, admin: true, slow: true, maxPayload: stringMax + 2 + labelsMax + pageMax,
		handle: on((*connection).allPage)},
	wire.StreamPage: {pages: true, slow: true, maxPayload: stringMax + pageMax,
		handle: pages((*connection).streamPage)},
	wire.PublishedPage: {pages: true, slow: true, maxPayload: stringMax + pageMax,
		handle: pages((*connection).publishedPage)},
	wire.TokenPage: {pages: true, admin: true, slow: true, maxPayload: stringMax + pageMax,
		handle: pages((*connection).tokenPage)},
	wire.PeerPage: {pages: true, admin: true, slow: true, maxPayload: stringMax + pageMax,
		handle: pages((*connection).peerPage)},
	wire.TopPage: {pages: true, slow: true, maxPayload: stringMax + pageMax, handle: pages((*connection).topPage)},
	wire.SessionPage: {pages: true, slow: true, maxPayload: stringMax + pageMax,
		handle: pages((*connection).sessionPage)},
	wire.CreateDevice: {mutates: true, atOnce: always,
		maxPayload: 8 + 16 + 1 + stringMax + metaMax + 8 + labelsMax, handle: on((*connection).createDevice)},
	wire.GetDevice: {local: true, maxPayload: idBytes + stringMax, handle: on((*connection).getDevice)},
	wire.CopyObject: {local: true, mutates: true, maxPayload: 2*(idBytes+8) + stringMax + 8,
		handle: on((*connection).copyObject)},
	wire.SealDevice: {local: true, mutates: true, maxPayload: idBytes + metaMax,
		answer: done((*connection).sealDevice)},
	wire.GPUs:  {local: true, maxPayload: 0, handle: on((*connection).gpus)},
	wire.Scrub: {slow: true, maxPayload: 2 + wire.MaxScrubPlace, answer: answers((*connection).scrub)},
	wire.Place: {slow: true, maxPayload: idBytes + stringMax + 2 + wire.MaxPolicy,
		answer: answers((*connection).place)},
	wire.Replicate: {mutates: true, slow: true, maxPayload: idBytes + 3*stringMax + 3,
		answer: answers((*connection).replicate)},
	wire.StreamRemove: {mutates: true, maxPayload: idBytes + stringMax,
		answer: done((*connection).streamRemove)},
	wire.Join:           {maxPayload: joinMax, handle: (*connection).enrolled},
	wire.Propose:        {node: true, maxPayload: ipc.MaxPayload, handle: on((*connection).propose)},
	wire.ReadIndex:      {node: true, maxPayload: 0, handle: on((*connection).readIndex)},
	wire.Pulse:          {node: true, maxPayload: 0, handle: on((*connection).pulse)},
	wire.JoinCluster:    {admin: true, local: true, maxPayload: 4 + 256 + 1024, handle: on((*connection).joinCluster)},
	wire.LeaveCluster:   {admin: true, local: true, maxPayload: 1, handle: on((*connection).leaveCluster)},
	wire.RemoveNode:     {admin: true, local: true, maxPayload: 2 + 256 + 1, handle: on((*connection).removeNode)},
	wire.LogEnd:         {node: true, maxPayload: 0, handle: on((*connection).logEnd)},
	wire.RecoverCluster: {admin: true, local: true, maxPayload: 1, handle: on((*connection).recoverCluster)},
	wire.BackupCluster:  {admin: true, local: true, maxPayload: 0, handle: on((*connection).backupCluster)},
	wire.ClusterStatus:  {maxPayload: 0, handle: on((*connection).clusterStatus)},
	wire.Access:         {maxPayload: 0, handle: on((*connection).access)},
	wire.TakeDevices: {node: true, maxPayload: idBytes + 5 + 2 + 64 + stringMax,
		handle: on((*connection).takeDevices)},
	wire.KeepDevices: {node: true, maxPayload: idBytes + 2 + wire.MaxTakenDevices*(2+256),
		handle: on((*connection).keepDevices)},
	wire.Leases:   {maxPayload: 0, handle: on((*connection).leases)},
	wire.EndLease: {maxPayload: stringMax, handle: on((*connection).endLease)},

	wire.CertificatePage: {pages: true, admin: true, slow: true, maxPayload: stringMax + pageMax,
		handle: pages((*connection).certificatePage)},
	wire.TenantPage: {pages: true, admin: true, slow: true, maxPayload: stringMax + pageMax,
		handle: pages((*connection).tenantPage)},
	wire.ChangeTenant: {admin: true, slow: true, maxPayload: 37 + 3*(2+256),
		answer: withCluster((*connection).changeTenant)},
	wire.Audit: {maxPayload: 16 + 256 + auditCursor, handle: on((*connection).audit)},
	wire.RevokeCertificates: {admin: true, slow: true, maxPayload: idBytes + 3*(2+256),
		answer: withCluster((*connection).revokeCertificates)},
}

// What follows makes a row's handle or answer of a method that gets the request decoded.

// request is what P is of a request M.
type request[M any] interface {
	*M
	Decode([]byte) error
}

// none is a request without fields: its row's maxPayload is 0.
type none struct{}

func (none) Decode([]byte) error { return nil }

// long is a payload that may be too long for one frame.
type long []byte

func (b long) Append(to []byte) []byte { return append(to, b...) }

// decoder decodes requests M. It decodes into a message from a pool: a new one would be allocated each time, and one
// of the connection's would take memory while the connection is at rest. Byte fields of a request alias the frame.
func decoder[M any, P request[M]]() func(*ipc.Frame) (M, error) {
	pool := sync.Pool{New: func() any { return P(new(M)) }}
	return func(f *ipc.Frame) (m M, err error) {
		p := pool.Get().(P)
		err = p.Decode(f.Payload)
		m, *p = *p, m
		pool.Put(p)
		return m, err
	}
}

// on is a row's handle.
func on[M any, P request[M]](do func(*connection, *ipc.Frame, M) error) func(*connection, *ipc.Frame) error {
	decode := decoder[M, P]()
	return func(c *connection, f *ipc.Frame) error {
		m, err := decode(f)
		if err != nil {
			return err
		}
		return do(c, f, m)
	}
}

// lists is on for a listing in one answer.
func lists[M any, P request[M]](of func(*connection, M) (listing, error)) func(*connection, *ipc.Frame) error {
	return on[M, P](func(c *connection, f *ipc.Frame, m M) error {
		list, err := of(c, m)
		if err != nil {
			return err
		}
		return c.replyList(f, list)
	})
}

// pages is on for a page of a listing.
func pages(of func(*connection, *wire.PageRequest) (listing, error)) func(*connection, *ipc.Frame) error {
	return on(func(c *connection, f *ipc.Frame, m wire.PageRequest) error {
		list, err := of(c, &m)
		if err != nil {
			return err
		}
		return c.replyPage(f, m.Limit, m.Cursor, list)
	})
}

// answers is a row's answer.
func answers[M any, P request[M]](do func(*connection, M) (ipc.Payload, error),
) func(*connection, *ipc.Frame) (ipc.Payload, error) {
	decode := decoder[M, P]()
	return func(c *connection, f *ipc.Frame) (ipc.Payload, error) {
		m, err := decode(f)
		if err != nil {
			return nil, err
		}
		return do(c, m)
	}
}

// done is answers with an empty reply.
func done[M any, P request[M]](do func(*connection, M) error) func(*connection, *ipc.Frame) (ipc.Payload, error) {
	return answers[M, P](func(c *connection, m M) (ipc.Payload, error) { return nil, do(c, m) })
}

// withCluster is answers for what needs the metadata.
func withCluster[M any, P request[M]](do func(*connection, Cluster, M) (ipc.Payload, error),
) func(*connection, *ipc.Frame) (ipc.Payload, error) {
	return answers[M, P](func(c *connection, m M) (ipc.Payload, error) {
		cluster, err := c.cluster()
		if err != nil {
			return nil, err
		}
		return do(c, cluster, m)
	})
}

// withPeers is answers for what needs links between workers.
func withPeers[M any, P request[M]](do func(*connection, Peers, M) (ipc.Payload, error),
) func(*connection, *ipc.Frame) (ipc.Payload, error) {
	return answers[M, P](func(c *connection, m M) (ipc.Payload, error) {
		peers, err := c.peers()
		if err != nil {
			return nil, err
		}
		return do(c, peers, m)
	})
}

// whether is a row's atOnce.
func whether[M any, P request[M]](is func(*connection, M) bool) func(*connection, *ipc.Frame) bool {
	decode := decoder[M, P]()
	return func(c *connection, f *ipc.Frame) bool {
		m, err := decode(f)
		return err == nil && is(c, m)
	}
}

// act does what one frame asks. A returned error ends the connection; a request's own failure is answered instead.
func (c *connection) act(f *ipc.Frame) error {
	row, known := rows[f.Type]
	began := time.Now()
	c.wanted = c.wanted || f.Flags&ipc.FlagLazy == 0
	err := c.check(f, row, known)
	fatal := err != nil
	if !fatal {
		err = c.run(f, row, known)
		fatal = object.CodeOf(err) == object.ErrProtocol.Code() || row.beforeHello
	}
	if err != nil && errors.Is(err, store.ErrWouldWait) { // on the poller; nothing was done
		c.leftOver = true
		return nil
	}
	c.srv.tallies.add(f.Type, time.Since(began), err != nil)
	switch {
	case err == nil:
		return nil
	case fatal:
		c.srv.broken.Add(1)
		return &breach{request: f.Request, error: err}
	}
	if f.Request != 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out = errorFrame(c.out, c.version, f.Request, err)
	}
	return nil
}

// check keeps the rules whose breach ends the connection.
func (c *connection) check(f *ipc.Frame, row row, known bool) error {
	greeted := c.store != nil
	f.CloseFDs()
	switch {
	case f.Flags&^ipc.FlagLazy != 0:
		return fmt.Errorf("%w: %v with flags 0x%x: a request has none, and the daemon accepts no descriptor",
			object.ErrProtocol, f.Type, f.Flags)
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
		return fmt.Errorf("%w: this daemon does not know %v: is it older than its client?",
			object.ErrUnsupported, f.Type)
	case row.mutates && c.ctx.Err() != nil:
		return fmt.Errorf("%w: the process that opened the connection has ended", object.ErrPermission)
	case f.Type == wire.OpenPage && c.peer.Remote != "":
		return fmt.Errorf("%w: %v from another machine: keys to the page are given out only on the daemon's machine",
			object.ErrUnsupported, f.Type)
	case row.local && c.peer.Remote != "":
		return fmt.Errorf("%w: %v from another machine: there is no shared memory over a network",
			object.ErrUnsupported, f.Type)
	case row.admin && !c.peer.Admin:
		return fmt.Errorf("%w: only root and the daemon's own user may do this, on its machine", object.ErrPermission)
	case row.node && c.peer.Role != pki.Node:
		return fmt.Errorf("%w: %v is for nodes of the cluster alone", object.ErrPermission, f.Type)
	case row.mutates && c.peer.Role != pki.User:
		return fmt.Errorf("%w: %v with a certificate of role %v: log in with a token of role user",
			object.ErrPermission, f.Type, c.peer.Role)
	case row.session && !c.inSession():
		return fmt.Errorf("%w: %v outside a session: OpenSession comes first", object.ErrInvalid, f.Type)
	}
	c.mu.Lock()
	if row.slow {
		err := c.flush()
		c.mu.Unlock()
		if err != nil {
			return nil // loop meets sendErr at its next flush
		}
		defer c.sayWorking(f.Request)()
	} else {
		defer c.mu.Unlock()
	}
	if row.handle != nil {
		return row.handle(c, f)
	}
	p, err := row.answer(c, f)
	switch {
	case err != nil:
		return err
	case row.slow:
		return c.replyLater(func() { c.reply(f, p) })
	}
	c.reply(f, p)
	return nil
}
