//! DMA handles: hints for the bus about where registered memory is used. Software has no bus, so
//! the hints are checked and have no effect.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::{
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID, IBV_DMAH_INIT_ATTR_MASK_PH,
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE, ibv_context, ibv_dmah, ibv_dmah_init_attr,
};
use crate::context::{self, Shared, implement_object};
use crate::errno;
use crate::object::{self, Base};

/// A DMA handle.
#[repr(C)]
pub struct Dmah {
    abi: UnsafeCell<ibv_dmah>,
    base: Base,
    shared: Arc<Shared>,
}

implement_object!(Dmah: ibv_dmah);

/// Processing hints of PCIe have two bits.
const MAX_HINT: u8 = 3;
/// `IBV_TPH_MEM_TYPE_PM`
const PERSISTENT: u8 = 1;

/// Checks that this process may run on the CPU, as the kernel does.
fn check_cpu(cpu: u32) -> Result<(), c_int> {
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu as usize >= size_of::<libc::cpu_set_t>() * 8 {
        return Err(libc::EINVAL);
    }
    // SAFETY: `set` is writable, and `cpu` is within it.
    unsafe {
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return Err(errno::last());
        }
        if libc::CPU_ISSET(cpu as usize, &set) { Ok(()) } else { Err(libc::EPERM) }
    }
}

fn check(attr: &ibv_dmah_init_attr) -> Result<(), c_int> {
    const KNOWN: u32 = IBV_DMAH_INIT_ATTR_MASK_CPU_ID
        | IBV_DMAH_INIT_ATTR_MASK_PH
        | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
    let given = |bit: u32| attr.comp_mask & bit != 0;
    if attr.comp_mask & !KNOWN != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let is_hint = !given(IBV_DMAH_INIT_ATTR_MASK_PH) || attr.ph <= MAX_HINT;
    let is_type = !given(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) || attr.tph_mem_type <= PERSISTENT;
    if !is_hint || !is_type {
        return Err(libc::EINVAL);
    }
    if given(IBV_DMAH_INIT_ATTR_MASK_CPU_ID) { check_cpu(attr.cpu_id) } else { Ok(()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_dmah(
    context: *mut ibv_context,
    attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    object::give_or_fail(context::shared(context).and_then(|shared| {
        check(&attr)?;
        let abi = UnsafeCell::new(ibv_dmah { context });
        Ok(Arc::new(Dmah { abi, base: Base::new(context.addr(), 0), shared }))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
    object::code(
        object::destroy::<Dmah>(dmah, |dmah| dmah.shared.check())
            .map(|destroyed| drop(destroyed.finish())),
    )
}
