//! A device's own memory: rings, frame pools and queues are allocated here.
//!
//! An [`Arena`] reserves a range of addresses once and maps memory into it in steps of 2 MiB, on
//! demand. The memory is a memfd of hugepages, so that a ring needs few TLB entries and could be
//! shared with another process. If the machine has no free hugepages left, the rest is a memfd of
//! ordinary pages, and one warning explains the remedy. The memfds and their pages are freed with
//! the process.
//!
//! Every page is populated before [`Arena::alloc`] returns, so the data path never sees a page
//! fault or a `SIGBUS`. Allocation takes a lock and belongs to the control plane.
//!
//! No published offset allocator is used: they neither grow nor align, and they round sizes up, so
//! that an exact fit fails. First fit is enough for the few dozen blocks of a device.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use thiserror::Error;

/// Growth step and largest alignment, in bytes: the hugepage of x86-64 and AArch64.
const STEP: usize = 2 << 20;

/// Blocks start and end at multiples of this many bytes (a cache line), so that no two of them
/// share a line.
const LINE: usize = 64;

/// Why an [`Arena`] returned no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ArenaError {
    /// The request exceeds the remainder below the limit.
    #[error("device memory is full: {need} bytes requested, {used} of {limit} in use")]
    Full {
        /// Bytes requested.
        need: usize,
        /// Bytes in use.
        used: usize,
        /// Maximum size of the arena in bytes.
        limit: usize,
    },
    /// The block would be empty, or its alignment is not a power of two up to 2 MiB.
    #[error("no block of {len} bytes aligned to {align} exists")]
    Layout {
        /// Bytes requested.
        len: usize,
        /// Alignment requested.
        align: usize,
    },
    /// The system has neither hugepages nor ordinary memory left.
    #[error(
        "the system has no {bytes} bytes for device memory: {}",
        io::Error::from_raw_os_error(*.errno)
    )]
    System {
        /// Bytes requested from the system.
        bytes: usize,
        /// Error number of the system.
        errno: i32,
    },
}

/// Size and use of an [`Arena`], in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Maximum size.
    pub limit: usize,
    /// Mapped so far.
    pub mapped: usize,
    /// Used by blocks.
    pub used: usize,
    /// Hugepage part of `mapped`.
    pub huge: usize,
}

/// A device's memory. Dropped with its last [`Block`].
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    state: Mutex<State>,
}

// SAFETY: `base` is the address of a mapping that lives as long as the arena. The mapping is
// changed only under the lock of `state`, and its memory is handed out in disjoint blocks.
unsafe impl Send for Arena {}
// SAFETY: as for `Send`.
unsafe impl Sync for Arena {}

#[derive(Debug)]
struct State {
    limit: usize,
    mapped: usize,
    used: usize,
    /// Memory below this offset may have been written by an earlier block.
    touched: usize,
    free: FreeList,
    /// `None` if the kernel has no hugepages, and after they ran out.
    huge: Option<MemFile>,
    huge_mapped: usize,
    plain: Option<MemFile>,
}

#[derive(Debug)]
struct MemFile {
    fd: OwnedFd,
    len: usize,
}

impl Arena {
    /// Makes an arena that may grow to `limit_bytes` (rounded up to 2 MiB). The first 2 MiB are
    /// mapped at once, so that [`Arena::hugepages`] has a result.
    ///
    /// # Errors
    /// The system's error, if it refuses the address range or the first 2 MiB.
    pub fn new(limit_bytes: usize) -> io::Result<Arc<Self>> {
        let limit = limit_bytes
            .max(1)
            .checked_next_multiple_of(STEP)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let base = reserve(limit)?;
        let state = State {
            limit,
            mapped: 0,
            used: 0,
            touched: 0,
            free: FreeList::default(),
            huge: MemFile::create(libc::MFD_HUGETLB | libc::MFD_HUGE_2MB).ok(),
            huge_mapped: 0,
            plain: None,
        };
        let arena = Self { base, state: Mutex::new(state) };
        arena.lock().grow(base, STEP)?;
        Ok(Arc::new(arena))
    }

    /// Returns a zeroed block of `len` bytes whose address and offset are multiples of `align`.
    ///
    /// # Errors
    /// [`ArenaError::Full`] at the limit, [`ArenaError::Layout`] for an empty block or an alignment
    /// that is not a power of two up to 2 MiB, [`ArenaError::System`] if the system has no memory
    /// left.
    pub fn alloc(self: &Arc<Self>, len: usize, align: usize) -> Result<Block, ArenaError> {
        let span = len.checked_next_multiple_of(LINE).unwrap_or(usize::MAX);
        if len == 0 || !align.is_power_of_two() || align > STEP {
            return Err(ArenaError::Layout { len, align });
        }
        let (offset, touched) = self.lock().take(self.base, len, span, align.max(LINE))?;
        // SAFETY: `take` returned an offset with `span` mapped bytes that no other block has.
        let start = unsafe { self.base.add(offset) };
        if offset < touched {
            // SAFETY: as above, and the length is at most `span`.
            unsafe { ptr::write_bytes(start.as_ptr(), 0, span.min(touched - offset)) };
        }
        Ok(Block { arena: Arc::clone(self), start, offset, len, span })
    }

    /// Returns true if all memory mapped so far consists of hugepages.
    pub fn hugepages(&self) -> bool {
        let state = self.lock();
        state.huge_mapped == state.mapped
    }

    /// Returns the size and use.
    pub fn stats(&self) -> ArenaStats {
        let state = self.lock();
        ArenaStats {
            limit: state.limit,
            mapped: state.mapped,
            used: state.used,
            huge: state.huge_mapped,
        }
    }

    /// Locks the state. It is consistent at every point that can panic, so poisoning has no
    /// meaning.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let limit = self.lock().limit;
        unmap(self.base, limit);
    }
}

impl State {
    /// Takes `span` bytes. Returns their offset, and the offset from which on memory is still zero.
    fn take(
        &mut self,
        base: NonNull<u8>,
        need: usize,
        span: usize,
        align: usize,
    ) -> Result<(usize, usize), ArenaError> {
        let offset = match self.free.take(span, align) {
            Some(offset) => offset,
            None => {
                let missing = self.missing(need, span, align)?;
                self.grow(base, missing)?;
                self.free.take(span, align).expect("the arena grew by what was missing")
            }
        };
        self.used += span;
        let touched = self.touched;
        self.touched = touched.max(offset + span);
        Ok((offset, touched))
    }

    /// Returns how many bytes, in whole steps, must be added for a block of `span` bytes at the
    /// end.
    fn missing(&self, need: usize, span: usize, align: usize) -> Result<usize, ArenaError> {
        let start = self.free.tail(self.mapped).next_multiple_of(align);
        start
            .checked_add(span)
            .and_then(|end| end.checked_next_multiple_of(STEP))
            .filter(|&end| end <= self.limit)
            .map(|end| end - self.mapped)
            .ok_or(ArenaError::Full { need, used: self.used, limit: self.limit })
    }

    /// Maps `bytes` more at the end: hugepages if there are any, else ordinary pages.
    fn grow(&mut self, base: NonNull<u8>, bytes: usize) -> Result<(), ArenaError> {
        let huge = self.huge.as_mut().is_some_and(|file| file.extend(bytes).is_ok());
        let file = if huge {
            self.huge.as_ref()
        } else {
            warn_once();
            // The existing mappings stay; the descriptor is not needed any more.
            self.huge = None;
            extend_plain(&mut self.plain, bytes).map_err(|error| system(bytes, &error))?;
            self.plain.as_ref()
        };
        let file = file.expect("extended above");
        // SAFETY: the range is inside the reservation (checked by `missing`) and nothing is mapped
        // in it yet.
        let mapped = unsafe { file.map_last(base.add(self.mapped), bytes) };
        if let Err(error) = mapped {
            // A failed MAP_FIXED may leave a hole in the reservation, which another mapping may
            // fill: the range is not used again.
            self.limit = self.mapped;
            return Err(system(bytes, &error));
        }
        self.free.give(self.mapped, bytes);
        self.mapped += bytes;
        self.huge_mapped += if huge { bytes } else { 0 };
        Ok(())
    }
}

impl From<ArenaError> for io::Error {
    fn from(error: ArenaError) -> Self {
        match error {
            ArenaError::System { errno, .. } => Self::from_raw_os_error(errno),
            ArenaError::Full { .. } => Self::new(io::ErrorKind::OutOfMemory, error),
            ArenaError::Layout { .. } => Self::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

fn system(bytes: usize, error: &io::Error) -> ArenaError {
    ArenaError::System { bytes, errno: error.raw_os_error().unwrap_or(libc::ENOMEM) }
}

fn extend_plain(plain: &mut Option<MemFile>, bytes: usize) -> io::Result<()> {
    match plain {
        Some(file) => file.extend(bytes),
        None => plain.insert(MemFile::create(0)?).extend(bytes),
    }
}

/// Hugepages that hold most programs' device memory; `feroce doctor` advises the same number.
const ENOUGH: usize = 256;

/// Warns once per process, however many devices are open.
fn warn_once() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "no free hugepages: device memory is ordinary pages, which is slower (as root: `sysctl \
             vm.nr_hugepages={ENOUGH}`)"
        );
    });
}

impl MemFile {
    fn create(flags: libc::c_uint) -> io::Result<Self> {
        // SAFETY: the name is a C string with static lifetime.
        let fd = unsafe { libc::memfd_create(c"feroce-arena".as_ptr(), libc::MFD_CLOEXEC | flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel returned a new descriptor, which nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, len: 0 })
    }

    /// Adds `bytes` of zeroed pages and allocates them at once: a page that is missing at its first
    /// access would cause a `SIGBUS`.
    fn extend(&mut self, bytes: usize) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        let (start, count) = (file_offset(self.len)?, file_offset(bytes)?);
        // SAFETY: the calls take no pointers, and the new range of the file is not mapped anywhere
        // yet.
        unsafe {
            if libc::fallocate(fd, 0, start, count) != 0 {
                let error = io::Error::last_os_error();
                // Free the pages of a partial allocation.
                libc::ftruncate(fd, start);
                return Err(error);
            }
        }
        self.len += bytes;
        Ok(())
    }

    /// Maps the last `bytes` of the file at `address`.
    ///
    /// # Safety
    /// `bytes` bytes at `address` are a reserved range that nothing uses.
    unsafe fn map_last(&self, address: NonNull<u8>, bytes: usize) -> io::Result<()> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let start = file_offset(self.len - bytes)?;
        // SAFETY: nothing uses the range (contract), and the file is at least `start + bytes` long.
        let at = unsafe {
            libc::mmap(
                address.as_ptr().cast(),
                bytes,
                protection,
                flags | libc::MAP_POPULATE,
                self.fd.as_raw_fd(),
                start,
            )
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn file_offset(bytes: usize) -> io::Result<libc::off_t> {
    libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Reserves `len` bytes of address space, aligned to [`STEP`], without memory.
fn reserve(len: usize) -> io::Result<NonNull<u8>> {
    let padded =
        len.checked_add(STEP).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses the address of the new mapping, so it replaces no other.
    let at = unsafe { libc::mmap(ptr::null_mut(), padded, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let raw = NonNull::new(at.cast::<u8>()).expect("mmap gave an address other than 0");
    let head = raw.as_ptr().align_offset(STEP);
    // SAFETY: `head < STEP` and the mapping has `len + STEP` bytes, so all three parts are inside
    // it.
    let (base, end) = unsafe { (raw.add(head), raw.add(head + len)) };
    unmap(raw, head);
    unmap(end, STEP - head);
    Ok(base)
}

/// Unmaps a range of this module's own mappings.
fn unmap(start: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY: the callers pass parts of a mapping made by `reserve` that nothing uses any more.
        let done = unsafe { libc::munmap(start.as_ptr().cast(), len) };
        debug_assert_eq!(done, 0, "munmap of its own range");
    }
}

/// A zeroed part of an [`Arena`]. Dropping the block frees the memory for other blocks, so an owner
/// of a pointer into the block must keep the block.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Arena>,
    start: NonNull<u8>,
    offset: usize,
    len: usize,
    span: usize,
}

// SAFETY: the block is the only owner of its bytes, and its methods return only a raw pointer.
unsafe impl Send for Block {}
// SAFETY: as for `Send`; a shared block gives access only through the raw pointer, whose users
// state why their accesses are sound.
unsafe impl Sync for Block {}

// A block is never empty, so `is_empty` would have no use.
#[allow(clippy::len_without_is_empty)]
impl Block {
    /// Returns the address of the first byte. The bytes are readable and writable while the block
    /// lives.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the requested length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the distance from the start of the arena in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = self.arena.lock();
        state.free.give(self.offset, self.span);
        state.used -= self.span;
    }
}

/// Free ranges: offset to length. No two are adjacent.
#[derive(Debug, Default)]
struct FreeList(BTreeMap<usize, usize>);

impl FreeList {
    /// Takes `len` bytes from the first range with enough room.
    fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let (start, size, offset) = self.0.iter().find_map(|(&start, &size)| {
            let offset = start.next_multiple_of(align);
            let end = offset.checked_add(len)?;
            (end <= start + size).then_some((start, size, offset))
        })?;
        self.0.remove(&start);
        if offset > start {
            self.0.insert(start, offset - start);
        }
        let rest = start + size - (offset + len);
        if rest > 0 {
            self.0.insert(offset + len, rest);
        }
        Some(offset)
    }

    /// Adds a free range and joins it with its neighbours.
    fn give(&mut self, mut start: usize, mut len: usize) {
        if let Some((&before, &size)) = self.0.range(..start).next_back() {
            assert!(before + size <= start, "range given back twice");
            if before + size == start {
                self.0.remove(&before);
                (start, len) = (before, size + len);
            }
        }
        if let Some((&after, &size)) = self.0.range(start..).next() {
            assert!(start + len <= after, "range given back twice");
            if start + len == after {
                self.0.remove(&after);
                len += size;
            }
        }
        self.0.insert(start, len);
    }

    /// Returns the start of the free range that ends at `end`, or `end` without one.
    fn tail(&self, end: usize) -> usize {
        match self.0.last_key_value() {
            Some((&start, &len)) if start + len == end => start,
            _ => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(block: &Block) -> &[u8] {
        // SAFETY: the block lives, and the tests write to it only when no such slice exists.
        unsafe { std::slice::from_raw_parts(block.as_ptr().as_ptr(), block.len()) }
    }

    fn fill(block: &Block, value: u8) {
        // SAFETY: the bytes belong to the block, and no slice of them exists now.
        unsafe { ptr::write_bytes(block.as_ptr().as_ptr(), value, block.len()) };
    }

    /// Returns the size of the pages at `address` from `/proc/self/smaps`.
    fn page_size(address: usize) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            let first = line.split_whitespace().next().unwrap_or_default();
            if let Some((start, end)) = first.split_once('-') {
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                inside = (number(start)..number(end)).contains(&address);
            } else if inside && first == "KernelPageSize:" {
                let kib = line.split_whitespace().nth(1).unwrap();
                return kib.parse::<usize>().unwrap() << 10;
            }
        }
        panic!("no mapping at {address:#x}");
    }

    #[test]
    fn hugepages_are_reported_as_the_kernel_maps_them() {
        let arena = Arena::new(64 << 20).unwrap();
        let block = arena.alloc(1, 1).unwrap();
        let page = page_size(block.as_ptr().as_ptr().addr());
        assert_eq!(arena.hugepages(), page == STEP, "pages of {page} bytes");
    }

    #[test]
    fn the_arena_grows_in_steps_to_its_limit_and_reuses_freed_memory() {
        let arena = Arena::new(5 << 20).unwrap();
        let stats = arena.stats();
        assert_eq!((stats.limit, stats.mapped, stats.used), (6 << 20, 2 << 20, 0));
        let small = arena.alloc(100, 1).unwrap();
        let large = arena.alloc(5 << 20, 1).unwrap();
        let stats = arena.stats();
        assert_eq!((stats.mapped, stats.used), (6 << 20, (5 << 20) + 128));
        let full = ArenaError::Full { need: 1 << 20, used: stats.used, limit: 6 << 20 };
        assert_eq!(arena.alloc(1 << 20, 1).unwrap_err(), full);
        drop(small);
        drop(large);
        assert_eq!(arena.stats().used, 0);
        let all = arena.alloc(6 << 20, STEP).unwrap();
        assert_eq!((all.offset(), all.len()), (0, 6 << 20));
    }

    #[test]
    fn freed_memory_is_zeroed_for_the_next_block() {
        let arena = Arena::new(STEP).unwrap();
        let block = arena.alloc(1000, 64).unwrap();
        let first = block.offset();
        fill(&block, 0xff);
        drop(block);
        let again = arena.alloc(5000, 64).unwrap();
        assert_eq!(again.offset(), first);
        assert!(bytes(&again).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn blocks_outlive_the_handle_of_their_arena() {
        let arena = Arena::new(STEP).unwrap();
        let block = arena.alloc(64, 64).unwrap();
        drop(arena);
        fill(&block, 7);
        assert_eq!(bytes(&block), [7; 64]);
    }

    #[test]
    fn impossible_requests_are_errors() {
        let arena = Arena::new(STEP).unwrap();
        for (len, align) in [(0, 1), (1, 0), (1, 3), (1, 4 << 20)] {
            assert_eq!(arena.alloc(len, align).unwrap_err(), ArenaError::Layout { len, align });
        }
        for len in [STEP + 1, usize::MAX - 62, usize::MAX] {
            let full = ArenaError::Full { need: len, used: 0, limit: STEP };
            assert_eq!(arena.alloc(len, 64).unwrap_err(), full);
        }
        assert_eq!(Arena::new(usize::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn system_errors_keep_their_number() {
        let error = ArenaError::System { bytes: STEP, errno: libc::ENOMEM };
        assert!(error.to_string().contains("Cannot allocate memory"), "{error}");
        assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::ENOMEM));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Live blocks are aligned, zeroed at first, disjoint, and return all memory.
        #[test]
        fn blocks_never_overlap(
            steps in prop::collection::vec((any::<bool>(), 1..300_000_usize, 0..13_u32), 1..60),
        ) {
            let arena = Arena::new(8 << 20).unwrap();
            let mut live: Vec<(u8, Block)> = Vec::new();
            for (turn, (free, len, align)) in steps.into_iter().enumerate() {
                if free && !live.is_empty() {
                    let (mark, block) = live.swap_remove(len % live.len());
                    prop_assert!(bytes(&block).iter().all(|&byte| byte == mark));
                } else if let Ok(block) = arena.alloc(len, 1 << align) {
                    prop_assert_eq!(block.len(), len);
                    prop_assert_eq!(block.offset() % (1 << align), 0);
                    prop_assert_eq!(block.as_ptr().as_ptr().addr() % (1 << align), 0);
                    prop_assert!(bytes(&block).iter().all(|&byte| byte == 0));
                    let mark = u8::try_from(turn % 255).unwrap() + 1;
                    fill(&block, mark);
                    live.push((mark, block));
                }
            }
            for (mark, block) in live.drain(..) {
                prop_assert!(bytes(&block).iter().all(|&byte| byte == mark));
            }
            prop_assert_eq!(arena.stats().used, 0);
            prop_assert!(arena.alloc(8 << 20, STEP).is_ok(), "the free ranges are joined again");
        }
    }
}
