//! Structures and constants that rdma-core's `verbs.h` got after release 44. A test compares their
//! layout with literal offsets, because the headers of release 44 do not have them.

use std::ffi::{c_int, c_uint, c_void};

use libc::size_t;

use super::work::constants;
use super::{abi_structs, ibv_context};

/// A buffer of the library; programs know only its address.
#[repr(C)]
pub struct ibv_buf {
    _opaque: [u8; 0],
}

abi_structs! {
    struct ibv_dmah [8] {
        context: *mut ibv_context,
    }
    // Release 64 added `buf`: before `comp_mask` is known, the last field must not be read.
    struct ibv_mr_init_attr [72] {
        length: size_t,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut ibv_dmah,
        buf: *mut ibv_buf,
    }
    struct ibv_dmah_init_attr [12] {
        comp_mask: u32,
        cpu_id: u32,
        ph: u8,
        tph_mem_type: u8,
    }
    struct ibv_comp_cntr_caps [16] {
        max_value: u64,
        max_counters: u32,
        supported_qp_attach_ops: u32,
    }
    struct ibv_comp_cntr [16] {
        context: *mut ibv_context,
        handle: u32,
    }
    struct ibv_comp_cntr_init_attr [12] {
        comp_mask: u32,
        r#type: c_uint,
        flags: u32,
    }
    struct ibv_qp_attach_comp_cntr_attr [8] {
        comp_mask: u32,
        op_mask: u32,
    }
}

constants! { u64:
    IBV_REG_MR_MASK_IOVA = 1,
    IBV_REG_MR_MASK_ADDR = 1 << 1,
    IBV_REG_MR_MASK_FD = 1 << 2,
    IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
    IBV_REG_MR_MASK_DMAH = 1 << 4,
    IBV_REG_MR_MASK_BUF = 1 << 5,
}

constants! { u32:
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1,
    IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1,
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2,

    IBV_COMP_CNTR_TYPE_WRS = 0,
    IBV_COMP_CNTR_TYPE_BYTES = 1,

    IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1,
    IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
}

#[cfg(test)]
mod tests {
    #[test]
    fn offsets_are_those_of_later_headers() {
        let offsets = |name: &str| {
            let layout = super::LAYOUTS.iter().find(|layout| layout.name == name).expect("a name");
            layout.fields.iter().map(|(_, offset, _)| *offset).collect::<Vec<_>>()
        };
        assert_eq!(offsets("ibv_mr_init_attr"), [0, 8, 16, 24, 32, 40, 48, 56, 64]);
        assert_eq!(offsets("ibv_dmah_init_attr"), [0, 4, 8, 9]);
        assert_eq!(offsets("ibv_comp_cntr_caps"), [0, 8, 12]);
        assert_eq!(offsets("ibv_comp_cntr"), [0, 8]);
        assert_eq!(offsets("ibv_comp_cntr_init_attr"), [0, 4, 8]);
        assert_eq!(offsets("ibv_qp_attach_comp_cntr_attr"), [0, 4]);
    }
}
