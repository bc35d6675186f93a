//! Names of status codes, events, port states and node types.

use std::ffi::{CStr, c_char, c_int, c_uint};

fn name(table: &[&'static CStr], number: c_uint, other: &'static CStr) -> *const c_char {
    table.get(number as usize).copied().unwrap_or(other).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&NAMES, status, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    name(&NAMES, event, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    const NAMES: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name(&NAMES, state, c"invalid state")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    let number = c_uint::try_from(kind).unwrap_or(0);
    name(&NAMES, number, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wr_opcode_str(opcode: c_uint) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    name(&NAMES, opcode, c"unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_engine::verbs::Status;

    #[test]
    fn engine_and_library_name_statuses_alike() {
        use Status as S;
        let all = [
            S::Success,
            S::LocalLength,
            S::LocalQpOperation,
            S::LocalProtection,
            S::WorkRequestFlushed,
            S::BadResponse,
            S::LocalAccess,
            S::RemoteInvalidRequest,
            S::RemoteAccess,
            S::RemoteOperational,
            S::RetryExceeded,
            S::RnrRetryExceeded,
            S::Fatal,
        ];
        for status in all {
            // SAFETY: the function returns a string of its table.
            let result = unsafe { CStr::from_ptr(ibv_wc_status_str(status as c_uint)) };
            assert_eq!(result.to_str(), Ok(status.text()));
        }
    }
}
