//! The bare loop: the same frames as the engine's on the same port, with the same copy, the same
//! CRC and one ACK per 16 packets, but without a protocol. It is the upper bound for an engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use feroce_engine::memory::buffer::SharedBytes;
use feroce_engine::port::{Port, Priority, RxFrame};
use feroce_wire::{Bth, FlowHeader, Payload, icrc};

use super::{BUFFER_LEN, ROUND, WRITE_LEN};

/// Maximum number of unacknowledged packets.
const WINDOW: u64 = 256;
/// Number of packets per acknowledgement.
const ACK_EVERY: u64 = 16;
/// Length of BTH and RETH in bytes.
const TRANSPORT: usize = Bth::LEN + 16;
/// Maximum number of frames per burst.
const BURST: usize = 64;

/// Time without an acknowledgement after which the sender considers outstanding packets lost.
const STALL: Duration = Duration::from_millis(2);

/// Sends frames from `near` to `far` for [`ROUND`]. Returns the received payload in bytes per
/// second. The buffers (source, target) come from the same kind of memory as the engine's buffers,
/// because pages differ in speed.
pub fn write_rate(
    near: &mut dyn Port,
    far: &mut dyn Port,
    flows: [&FlowHeader; 2],
    buffers: [&SharedBytes; 2],
) -> f64 {
    let stop = AtomicBool::new(false);
    let [source, target] = buffers;
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(far, flows[1], target, &stop));
        let start = Instant::now();
        send(near, flows[0], source);
        let elapsed = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let received = receiver.join().expect("the receiver ends");
        (received * WRITE_LEN as u64) as f64 / elapsed
    })
}

/// Returns the number that a frame carries in place of its BTH.
fn number(frame: RxFrame<'_>, flow: &FlowHeader) -> u64 {
    let bytes = &frame.first[flow.len()..flow.len() + 8];
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}

/// Runs the sender for [`ROUND`].
pub fn send(port: &mut dyn Port, flow: &FlowHeader, source: &SharedBytes) {
    let start = Instant::now();
    let (mut sent, mut acked, mut offset, mut id) = (0u64, 0u64, 0, 1u16);
    let mut last_ack = start;
    let head = flow.len() + TRANSPORT;
    loop {
        let now = Instant::now(); // Once per turn, as the engine.
        if now - start >= ROUND {
            return;
        }
        for index in 0..port.rx_burst() {
            acked = acked.max(number(port.rx_frame(index), flow));
            last_ack = now;
        }
        if now - last_ack > STALL {
            (acked, last_ack) = (sent, now); // Frames were lost.
        }
        let room = port.tx_room().min(BURST);
        for _ in 0..room {
            if sent - acked >= WINDOW {
                break;
            }
            sent += 1;
            let slot = port.tx_slot().expect("there is room");
            source.read(offset, &mut slot[head..head + WRITE_LEN]);
            slot[flow.len()..head].fill(0);
            slot[flow.len()..flow.len() + 8].copy_from_slice(&sent.to_ne_bytes());
            let len = flow.seal(slot, TRANSPORT + WRITE_LEN, id);
            port.tx_commit(len, Priority::default());
            id = id.wrapping_add(1);
            offset = (offset + WRITE_LEN) % BUFFER_LEN;
        }
        port.flush().expect("the port sends");
    }
}

/// Runs the receiver until `stop` is set. Returns the number of received packets.
pub fn receive(
    port: &mut dyn Port,
    flow: &FlowHeader,
    target: &SharedBytes,
    stop: &AtomicBool,
) -> u64 {
    let (mut received, mut offset) = (0u64, 0);
    let head = flow.len() + TRANSPORT;
    while !stop.load(Ordering::Relaxed) {
        let count = port.rx_burst();
        let mut newest = 0;
        for index in 0..count {
            let frame = port.rx_frame(index);
            if frame.len() != head + WRITE_LEN + icrc::LEN {
                continue;
            }
            check(frame, flow);
            copy_payload(frame, head, target, offset);
            offset = (offset + WRITE_LEN) % BUFFER_LEN;
            received += 1;
            if received.is_multiple_of(ACK_EVERY) {
                newest = number(frame, flow);
            }
        }
        if newest > 0 && port.tx_room() > 0 {
            let slot = port.tx_slot().expect("there is room");
            slot[flow.len()..flow.len() + 16].fill(0);
            slot[flow.len()..flow.len() + 8].copy_from_slice(&newest.to_ne_bytes());
            let len = flow.seal(slot, 16, 1);
            port.tx_commit(len, Priority::default());
        }
        port.flush().expect("the port sends");
    }
    received
}

/// Computes the CRC of the frame from the IP header to the end of the payload.
fn check(frame: RxFrame<'_>, flow: &FlowHeader) {
    let ip_at = flow.len() - 28;
    let covered = Payload { first: &frame.first[ip_at..], second: frame.second };
    let covered = covered.split_at(covered.len() - icrc::LEN).0;
    assert_ne!(icrc::icrc(covered), 0, "one CRC in 2^32 is zero");
}

/// Copies the payload to `target`.
fn copy_payload(frame: RxFrame<'_>, head: usize, target: &SharedBytes, offset: usize) {
    let all = Payload { first: frame.first, second: frame.second };
    let payload = all.split_at(head).1.split_at(WRITE_LEN).0;
    target.write(offset, payload.first);
    target.write(offset + payload.first.len(), payload.second);
}
