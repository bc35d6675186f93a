//! Completions and events as async streams: every item arrives, and the task sleeps in between.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::task::Waker;
use std::time::Duration;

use feroce_engine::cm::{CmConfig, CmError, CmId, DeviceKey, Event, EventKind, Parameters, QpKind};
use feroce_engine::device::{
    Buffer, CmEventQueue, ConnectOptions, ConnectionManager, Device, DeviceConfig, QpInit,
    QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::stream::{CmEventStream, CompletionStream, EventStream};
use feroce_engine::verbs::{
    AsyncEvent, Completion, CompletionOpcode, Data, RecvRequest, RemoteAddr, SendFlags, SendOp,
    SendRequest, Status,
};
use feroce_engine::wire::Key;
use feroce_engine::wire::cm::PortSpace;
use tokio::time::timeout;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Far more than a wake-up takes: a lost one fails the test instead of stopping it.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

struct End {
    device: Device,
    qp: QueuePair,
    completions: CompletionStream,
    buffer: Buffer,
}

impl End {
    fn new(device: Device) -> Outcome<Self> {
        let pd = device.alloc_pd();
        let cq = device.create_cq(256)?;
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        let buffer = pd.alloc_buffer(4096, Access::ALL)?;
        Ok(Self { device, qp, completions: CompletionStream::new(cq)?, buffer })
    }

    async fn completion(&mut self) -> Outcome<Completion> {
        Ok(timeout(TEST_TIMEOUT, self.completions.next()).await??)
    }

    fn post(&mut self, wr_id: u64, op: SendOp) -> Outcome {
        let sges = [self.buffer.region().sge(0, 8)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        Ok(self.qp.post_send(&SendRequest { wr_id, op, data, flags })?)
    }

    fn post_recv(&mut self, wr_id: u64) -> Outcome {
        let sges = [self.buffer.region().sge(64, 8)];
        Ok(self.qp.post_recv(&RecvRequest { wr_id, sges: &sges })?)
    }
}

fn ends() -> Outcome<[End; 2]> {
    let [near, far] = Device::open_pair(&DeviceConfig::default())?;
    let (mut near, mut far) = (End::new(near)?, End::new(far)?);
    let (near_psn, far_psn) = (near.device.random_psn()?, far.device.random_psn()?);
    let (a, b) = (near.qp.endpoint(near_psn, 0)?, far.qp.endpoint(far_psn, 0)?);
    near.qp.connect(near_psn, &b, &ConnectOptions::default())?;
    far.qp.connect(far_psn, &a, &ConnectOptions::default())?;
    Ok([near, far])
}

/// Each message is sent only when the one before has arrived, so that each needs a wake-up.
#[tokio::test]
async fn ten_thousand_messages_wake_their_task() -> Outcome {
    const ROUNDS: u64 = 5000;
    let [mut near, mut far] = ends()?;
    near.post_recv(0)?;
    far.post_recv(0)?;
    let serve = async {
        let (mut received, mut sent) = (0, 0);
        while received + sent < 2 * ROUNDS {
            // The next message may come before the acknowledgement of the answer to this one.
            let completion = far.completion().await?;
            assert!(completion.is_success(), "{completion:?}");
            if completion.opcode == CompletionOpcode::Send {
                sent += 1;
                continue;
            }
            assert_eq!(completion.wr_id, received);
            received += 1;
            far.post_recv(received)?;
            far.post(1 << 32, SendOp::Send)?;
        }
        Outcome::Ok(())
    };
    let call = async {
        for round in 0..ROUNDS {
            near.post(1 << 32, SendOp::Send)?;
            let mut seen = [near.completion().await?.wr_id, near.completion().await?.wr_id];
            seen.sort_unstable();
            assert_eq!(seen, [round, 1 << 32]);
            near.post_recv(round + 1)?;
        }
        Outcome::Ok(())
    };
    tokio::try_join!(serve, call)?;
    Ok(())
}

/// A task whose stream always has an item lets others run: tokio's budget of a task is 128 items.
#[tokio::test]
async fn a_busy_stream_yields() -> Outcome {
    let [mut near, far] = ends()?;
    let remote = far.buffer.region().remote_addr(0);
    let others_turns = std::cell::Cell::new(0);
    let busy = async {
        for round in 0..1000 {
            near.post(round, SendOp::Write(remote))?;
            while near.completions.queue().held() == 0 {}
            assert_eq!(near.completions.next().await?.wr_id, round);
        }
        Outcome::Ok(())
    };
    let other = async {
        loop {
            others_turns.set(others_turns.get() + 1);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! { biased; done = busy => done?, () = other => {} }
    assert!(others_turns.get() > 3, "{} turns", others_turns.get());
    Ok(())
}

#[tokio::test]
async fn a_dropped_future_takes_nothing() -> Outcome {
    let [mut near, far] = ends()?;
    let remote = far.buffer.region().remote_addr(0);
    for wr_id in 0..200 {
        // Times out before, while or after the request completes.
        near.post(wr_id, SendOp::Write(remote))?;
        let early = timeout(Duration::from_micros(wr_id), near.completions.next()).await;
        let completion = match early {
            Ok(completion) => completion?,
            Err(_) => near.completion().await?,
        };
        assert_eq!(completion.wr_id, wr_id);
    }
    Ok(())
}

#[tokio::test]
async fn asynchronous_events_arrive() -> Outcome {
    let [mut near, far] = ends()?;
    let mut events = EventStream::new(far.device.clone())?;
    assert!(timeout(Duration::from_millis(20), events.next()).await.is_err(), "none yet");
    let rkey = Key(far.buffer.region().rkey().value() ^ 1);
    let wrong = RemoteAddr { rkey, ..far.buffer.region().remote_addr(0) };
    near.post(1, SendOp::Write(wrong))?;
    assert_eq!(near.completion().await?.status, Status::RemoteAccess);
    let event = timeout(TEST_TIMEOUT, events.next()).await??;
    assert_eq!(event, AsyncEvent::QpAccessError(far.qp.qpn()));
    Ok(())
}

#[tokio::test]
async fn a_queue_with_a_waker_is_refused() -> Outcome {
    let [device, _] = Device::open_pair(&DeviceConfig::default())?;
    let cq = device.create_cq_waking(16, Waker::noop().clone())?;
    let refused = CompletionStream::new(cq).expect_err("no descriptor becomes readable");
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    Ok(())
}

/// Communication management of one end, and its events.
struct Manager {
    manager: ConnectionManager,
    events: CmEventStream,
}

impl Manager {
    fn new(device: &Device) -> Outcome<Self> {
        let queue = CmEventQueue::new()?;
        let manager = ConnectionManager::new(CmConfig::default(), queue.sink())?;
        manager.attach(DeviceKey(0), device)?;
        Ok(Self { manager, events: CmEventStream::new(queue)? })
    }

    async fn expect(&mut self, kind: EventKind) -> Outcome<Event> {
        let event = timeout(TEST_TIMEOUT, self.events.next()).await??;
        if event.kind == kind { Ok(event) } else { Err(format!("{event:?}").into()) }
    }

    fn listen(&self, address: SocketAddr) -> Result<CmId, CmError> {
        self.manager.with(|cm, now| {
            let id = cm.create(PortSpace::Tcp, QpKind::Rc);
            cm.bind(id, address)?;
            cm.listen(id, 0, now).map(|()| id)
        })
    }

    fn connect(&self, address: SocketAddr, own: &Parameters) -> Result<CmId, CmError> {
        let path = self.manager.resolve(IpAddr::from([0; 4]), address);
        self.manager.with(|cm, now| {
            let id = cm.create(PortSpace::Tcp, QpKind::Rc);
            cm.resolve_address(id, None, address)?;
            cm.address_resolved(id, path)?;
            cm.resolve_route(id)?;
            cm.route_resolved(id, Ok(()))?;
            cm.connect(id, own, b"", now).map(|()| id)
        })
    }
}

/// The QPs get the agreed numbers of READs, each end from its point of view.
#[tokio::test]
async fn connection_management_connects_qps() -> Outcome {
    let [near, far] = Device::open_pair(&DeviceConfig::default())?;
    let (mut near, mut far) = (End::new(near)?, End::new(far)?);
    let (mut active, mut passive) = (Manager::new(&near.device)?, Manager::new(&far.device)?);
    let server = SocketAddr::from(([10, 0, 0, 2], 7471));
    passive.listen(server)?;
    let own = Parameters {
        qpn: near.qp.qpn(),
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 4,
        ..Parameters::default()
    };
    let connection = active.connect(server, &own)?;
    active.expect(EventKind::AddrResolved).await?;
    active.expect(EventKind::RouteResolved).await?;

    let request = passive.expect(EventKind::ConnectRequest).await?;
    let parameters = passive.manager.with(|cm, _| cm.qp_parameters(request.id))?;
    far.qp.connect_cm(&parameters)?;
    far.post_recv(7)?;
    let own = Parameters { qpn: far.qp.qpn(), ..request.parameters };
    passive.manager.with(|cm, now| cm.accept(request.id, &own, b"", now))?;
    active.expect(EventKind::ConnectResponse).await?;
    near.qp.connect_cm(&active.manager.with(|cm, _| cm.qp_parameters(connection))?)?;
    active.manager.with(|cm, _| cm.establish(connection, b""))?;
    passive.expect(EventKind::Established).await?;

    let [a, b] = [&near, &far].map(|end| end.qp.query());
    assert_eq!((a.max_rd_atomic, a.max_dest_rd_atomic), (Some(5), Some(3)));
    assert_eq!((b.max_rd_atomic, b.max_dest_rd_atomic), (Some(3), Some(5)));
    assert_eq!((a.retry_cnt, a.rnr_retry), (Some(6), Some(4)));
    near.post(1, SendOp::Send)?;
    assert_eq!(near.completion().await?.status, Status::Success);
    assert_eq!(far.completion().await?.wr_id, 7);
    let foreign = near.qp.connect_cm(&parameters);
    assert!(foreign.is_err(), "the path of the other device");
    Ok(())
}
