//! What the rings need of the rest of the engine, as short as possible.

/// Descriptors of events, and the system call that waits for several of them.
pub mod wake {
    use std::cell::RefCell;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, RawFd};
    use std::sync::Arc;

    use loom::sync::{Condvar, Mutex};

    /// The descriptors of a run, by number: whether each is readable.
    struct Descriptors {
        readable: Mutex<Vec<bool>>,
        changed: Condvar,
    }

    thread_local! { // loom runs the threads of a model in one thread.
        static DESCRIPTORS: RefCell<Option<Arc<Descriptors>>> = const { RefCell::new(None) };
    }

    fn descriptors() -> Arc<Descriptors> {
        DESCRIPTORS.with_borrow(|all| Arc::clone(all.as_ref().expect("set by `begin`")))
    }

    /// Begins a run without descriptors.
    pub fn begin() {
        let none = Descriptors { readable: Mutex::new(Vec::new()), changed: Condvar::new() };
        DESCRIPTORS.set(Some(Arc::new(none)));
    }

    /// Sleeps until one of `fds` is readable, as `poll` without a time limit.
    pub fn poll(fds: &[RawFd]) {
        let all = descriptors();
        let mut readable = all.readable.lock().unwrap();
        while !fds.iter().any(|fd| readable[*fd as usize]) {
            readable = all.changed.wait(readable).unwrap();
        }
    }

    /// As an eventfd: readable from `signal` until `clear`.
    #[derive(Debug)]
    pub struct EventFd(RawFd);

    impl EventFd {
        pub fn new() -> io::Result<Self> {
            let all = descriptors();
            let mut readable = all.readable.lock().unwrap();
            readable.push(false);
            Ok(Self(readable.len() as RawFd - 1))
        }

        pub fn signal(&self) {
            let all = descriptors();
            all.readable.lock().unwrap()[self.0 as usize] = true;
            all.changed.notify_all();
        }

        pub fn clear(&self) -> bool {
            std::mem::take(&mut descriptors().readable.lock().unwrap()[self.0 as usize])
        }
    }

    impl AsFd for EventFd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            // SAFETY: a small number, which only `poll` above uses.
            unsafe { BorrowedFd::borrow_raw(self.0) }
        }
    }
}

/// Memory of the heap.
pub mod arena {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;
    use std::sync::Arc;

    #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
    #[error("no memory")]
    pub struct ArenaError;

    #[derive(Debug)]
    pub struct Arena;

    #[derive(Debug)]
    pub struct Block {
        start: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: the block owns its memory; its users say why their accesses are sound.
    unsafe impl Send for Block {}
    // SAFETY: as above.
    unsafe impl Sync for Block {}

    impl Arena {
        pub fn alloc(self: &Arc<Self>, len: usize, align: usize) -> Result<Block, ArenaError> {
            let layout = Layout::from_size_align(len, align).map_err(|_| ArenaError)?;
            // SAFETY: rings are not empty.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(ArenaError)?;
            Ok(Block { start, layout })
        }
    }

    impl Block {
        pub fn as_ptr(&self) -> NonNull<u8> {
            self.start
        }

        pub fn len(&self) -> usize {
            self.layout.size()
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

/// Memory that two processes share: not in a model.
pub mod shared_memory {
    use std::ptr::NonNull;

    #[derive(Debug)]
    pub struct SharedMemory;

    impl SharedMemory {
        pub fn at(&self, _offset: usize, _len: usize) -> NonNull<u8> {
            unreachable!("no model has two processes")
        }
    }
}

/// A bell between two threads.
pub mod bell {
    use std::os::fd::{AsFd, AsRawFd, RawFd};
    use std::sync::Arc;

    use super::wake::EventFd;

    #[derive(Debug, Clone)]
    pub enum Bell {
        Event(Arc<EventFd>),
    }

    impl Bell {
        pub fn signal(&self) {
            let Self::Event(event) = self;
            event.signal();
        }

        pub fn clear(&self) {
            let Self::Event(event) = self;
            event.clear();
        }

        pub fn fd(&self) -> RawFd {
            let Self::Event(event) = self;
            event.as_fd().as_raw_fd()
        }
    }
}

/// As the library's queue, which has tests of its own; here only for what it orders.
#[derive(Debug)]
pub struct ArrayQueue<T> {
    values: loom::sync::Mutex<std::collections::VecDeque<T>>,
    capacity: usize,
}

impl<T> ArrayQueue<T> {
    pub fn new(capacity: usize) -> Self {
        Self { values: loom::sync::Mutex::default(), capacity }
    }

    pub fn push(&self, value: T) -> Result<(), T> {
        let mut values = self.values.lock().unwrap();
        if values.len() == self.capacity {
            return Err(value);
        }
        values.push_back(value);
        Ok(())
    }

    pub fn pop(&self) -> Option<T> {
        self.values.lock().unwrap().pop_front()
    }

    pub fn len(&self) -> usize {
        self.values.lock().unwrap().len()
    }
}

pub mod port {
    /// As the engine's.
    pub const RX_BURST: usize = 64;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Priority(u8);

    impl Priority {
        pub fn new(value: u8) -> Self {
            Self(value)
        }

        pub fn value(self) -> u8 {
            self.0
        }
    }
}
