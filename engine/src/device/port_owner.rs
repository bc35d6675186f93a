//! What a device asks of the process that owns its port, if that is another one: QP numbers, and
//! permission for the destinations of connected QPs.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use feroce_wire::Qpn;

use super::{DeviceError, Opened};
use crate::qp::attributes::QpAttributes;
use crate::qp::{QpState, Service};

/// Takes a free QP number, or the one that is requested.
pub(super) fn take_qpn(device: &Opened, requested: Option<Qpn>) -> Result<Qpn, DeviceError> {
    let mut free = device.free_qpns.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(owner) = device.port_owner.as_ref().filter(|_| free.needs_slice()) {
        let first = owner.qpn_slice()?;
        free.add_slice(first);
    }
    match requested {
        None => free.take().ok_or(DeviceError::Exhausted("QPs")),
        Some(qpn) if free.take_number(qpn) => Ok(qpn),
        Some(qpn) => Err(DeviceError::Qpn(qpn.value())),
    }
}

/// Gives a QP number back.
pub(super) fn give_qpn(device: &Opened, qpn: Qpn) {
    if qpn == Qpn::GSI {
        device.gsi_taken.store(false, Ordering::Release);
        return;
    }
    device.free_qpns.lock().unwrap_or_else(PoisonError::into_inner).give(qpn);
}

/// Registers with the owner the destination to which the QP `qpn` of `service` sends once it has
/// `attributes`. The state RESET removes the destination.
pub(super) fn update_destination(
    device: &Opened,
    (qpn, service): (Qpn, Service),
    attributes: &QpAttributes,
) -> Result<(), DeviceError> {
    let Some(owner) = device.port_owner.as_ref().filter(|_| service != Service::Ud) else {
        return Ok(());
    };
    match (attributes.state, attributes.flow, attributes.dest_qp) {
        (Some(QpState::Rtr), Some(flow), Some(remote)) => {
            let remote_ip = flow.spec().addresses.dst();
            Ok(owner.connect(qpn, remote_ip, remote)?)
        }
        (Some(QpState::Reset), ..) => {
            owner.disconnect(qpn);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Removes the destination of the QP `qpn` of `service` from the owner.
pub(super) fn forget(device: &Opened, qpn: Qpn, service: Service) {
    if let Some(owner) = device.port_owner.as_ref().filter(|_| service != Service::Ud) {
        owner.disconnect(qpn);
    }
}
