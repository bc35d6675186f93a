//! Objects that programs hold by the address of the C structure at their beginning, and the table
//! of live ones.
//!
//! A program passes raw pointers, and some programs pass wrong ones: to a destroyed object, to an
//! object of another kind, or to an object whose `handle` or `context` they have overwritten. The
//! kernel, which finds objects by number, refuses such calls. So do the libraries: [`live`] and
//! [`destroy`] look up the address in the table and return a counted reference to the object, so
//! that its memory stays valid during the call. Calls of the control path look up addresses, and so
//! do the calls that read and acknowledge events.
//!
//! A look-up has limits. An address that a new object of the same kind has taken is not recognised
//! as stale: the call uses the new object. Pointers to anything but objects are trusted.
//!
//! Calls of the data path (posting, polling, the `ibv_wr_*` and `ibv_wc_*` functions) use
//! [`borrow`], without a look-up. They rely on what the manual pages require of programs:
//!
//! * A pointer to an object is live: a create function of this library returned it, and its destroy
//!   function has not been called.
//! * No thread uses an object while another thread destroys it.
//!
//! All functions rely on the following:
//!
//! * A pointer to attributes, work requests or completions is valid for reads, or for writes where
//!   the function fills it in. An array has as many elements as the call says.
//! * A string ends with a zero byte.
//!
//! Objects are shared between threads, so the libraries only borrow them immutably. Fields that
//! change while programs may read them are in cells.

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use crate::errno;

/// What each object has behind its C structure.
#[derive(Debug)]
pub struct Base {
    /// Number of objects that use this one: see [`Use`]. Raised only with the table locked.
    users: AtomicUsize,
    /// Address of the program's context, and the object's number.
    named: (usize, u32),
}

impl Base {
    /// Returns the base of an object of a context: `context` is its address, `handle` the number
    /// that the C structure shows. Where a C structure has neither, both are 0.
    pub fn new(context: usize, handle: u32) -> Self {
        Self { users: AtomicUsize::new(0), named: (context, handle) }
    }

    /// Returns the address of the program's context.
    pub fn context(&self) -> usize {
        self.named.0
    }

    /// Returns context and handle as they were at creation.
    pub fn named(&self) -> (usize, u32) {
        self.named
    }
}

/// An object with a C structure `Abi` at its beginning.
///
/// # Safety
/// The type is `repr(C)`, and its first field is an `UnsafeCell` that begins with an `Abi`; or
/// `abi` is implemented, and the object is never passed to [`borrow`].
pub unsafe trait Object: Any + Send + Sync + Sized {
    /// The C structure.
    type Abi;

    /// Returns the base.
    fn base(&self) -> &Base;

    /// Returns the program's pointer.
    fn abi(&self) -> *mut Self::Abi {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the address of the program's pointer, for a place that keeps it as a number. A
    /// pointer made from the address gives access to the whole object, as [`borrow`] needs; one
    /// made from the address of the field with the C structure would give access to this field
    /// only.
    fn exposed(&self) -> usize {
        self.abi().expose_provenance()
    }

    /// Ends the use of other objects by this one. Called once, when the program destroys this one.
    fn release_uses(&self);

    /// Returns the address of the context and the handle that the C structure shows now: the
    /// program may have overwritten them.
    fn shown(&self) -> (usize, u32) {
        self.base().named()
    }

    /// Checks that the C structure shows the object's own context and handle.
    ///
    /// # Errors
    /// `code` for another context or handle: the kernel numbers the objects of each context
    /// separately, so both name no object.
    fn check_shown(&self, code: c_int) -> Result<(), c_int> {
        if self.shown() == self.base().named() { Ok(()) } else { Err(code) }
    }
}

/// A live object.
struct Entry {
    object: Arc<dyn Any + Send + Sync>,
    /// A destroy call waits for the program to acknowledge events of the object.
    is_being_destroyed: bool,
}

/// The live objects by the program's pointer.
struct Table {
    /// A pthread mutex, because the guard of std's mutex cannot be kept across a fork.
    lock: UnsafeCell<libc::pthread_mutex_t>,
    entries: UnsafeCell<BTreeMap<usize, Entry>>,
}

// SAFETY: the lock guards the entries, which may be used from every thread.
unsafe impl Sync for Table {}

static TABLE: Table = Table {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    entries: UnsafeCell::new(BTreeMap::new()),
};

extern "C" fn lock_table() {
    // SAFETY: the mutex is initialised and does not move.
    unsafe { libc::pthread_mutex_lock(TABLE.lock.get()) };
}

extern "C" fn unlock_table() {
    // SAFETY: the mutex is initialised and does not move.
    unsafe { libc::pthread_mutex_unlock(TABLE.lock.get()) };
}

/// Runs `act` on the table with the lock held. `act` must drop no object: its drop may take the
/// lock.
fn with_table<R>(act: impl FnOnce(&mut BTreeMap<usize, Entry>) -> R) -> R {
    static WATCH: Once = Once::new();
    // A forked child inherits the table; it must not inherit the lock of another thread.
    WATCH.call_once(|| {
        // SAFETY: the handlers only lock and unlock a mutex.
        unsafe { libc::pthread_atfork(Some(lock_table), Some(unlock_table), Some(unlock_table)) };
    });
    lock_table();
    // SAFETY: the lock is held, and `act` cannot reach the entries by another reference.
    let done = act(unsafe { &mut *TABLE.entries.get() });
    unlock_table();
    done
}

/// Hands an object to the program.
pub fn give<T: Object>(object: Arc<T>) -> *mut T::Abi {
    let abi = object.abi();
    let replaced =
        with_table(|table| table.insert(abi.addr(), Entry { object, is_being_destroyed: false }));
    debug_assert!(replaced.is_none(), "an address of a live object");
    abi
}

/// Why an address is not that of a live object.
enum Unknown {
    Address,
    Kind,
}

/// Returns the object at the program's pointer, and whether it is being destroyed.
fn look_up<T: Object>(abi: *mut T::Abi) -> Result<(Arc<T>, bool), Unknown> {
    let found = with_table(|table| {
        table.get(&abi.addr()).map(|entry| (Arc::clone(&entry.object), entry.is_being_destroyed))
    });
    let (object, is_being_destroyed) = found.ok_or(Unknown::Address)?;
    object.downcast::<T>().map(|object| (object, is_being_destroyed)).map_err(|_| Unknown::Kind)
}

/// Returns the live object at the program's pointer.
///
/// # Errors
/// EINVAL, as the kernel for a number that names no object: null, a destroyed object, an object of
/// another kind, or a C structure with another `context` or `handle` than at creation.
pub fn live<T: Object>(abi: *mut T::Abi) -> Result<Arc<T>, c_int> {
    match look_up::<T>(abi) {
        Ok((object, false)) => object.check_shown(libc::EINVAL).map(|()| object),
        _ => Err(libc::EINVAL),
    }
}

/// Returns the live object at the program's pointer; `None` for null.
///
/// # Errors
/// As for [`live`].
pub fn live_or_null<T: Object>(abi: *mut T::Abi) -> Result<Option<Arc<T>>, c_int> {
    if abi.is_null() { Ok(None) } else { live(abi).map(Some) }
}

/// Returns the object at the program's pointer, even while it is being destroyed: its events are
/// acknowledged then.
pub fn known<T: Object>(abi: *mut T::Abi) -> Option<Arc<T>> {
    look_up(abi).ok().map(|(object, _)| object)
}

/// Begins to destroy the object at the program's pointer, after `check`. From here on, other calls
/// refuse it. A refused call changes nothing for other threads.
///
/// # Errors
/// ENOENT, as the kernel for a number that names no object: null, an object that is destroyed or
/// being destroyed, another `handle` or `context` than at creation. EINVAL for an object of another
/// kind. The error of `check`. EBUSY if another object uses this one.
pub fn destroy<T: Object>(
    abi: *mut T::Abi,
    check: impl FnOnce(&T) -> Result<(), c_int>,
) -> Result<Destroying<T>, c_int> {
    let (object, is_being_destroyed) = look_up::<T>(abi).map_err(|unknown| match unknown {
        Unknown::Address => libc::ENOENT,
        Unknown::Kind => libc::EINVAL,
    })?;
    object.check_shown(libc::ENOENT)?;
    if is_being_destroyed {
        return Err(libc::ENOENT);
    }
    check(&object)?;
    with_table(|table| match table.get_mut(&abi.addr()) {
        Some(entry) if !entry.is_being_destroyed => {
            if object.base().users.load(Ordering::Acquire) > 0 {
                return Err(libc::EBUSY);
            }
            entry.is_being_destroyed = true;
            Ok(())
        }
        _ => Err(libc::ENOENT),
    })?;
    Ok(Destroying(object))
}

/// An object that is being destroyed.
#[must_use]
pub struct Destroying<T: Object>(Arc<T>);

impl<T: Object> Destroying<T> {
    /// Removes the object from the table, and ends its use of other objects. Its memory is freed
    /// when the result is dropped, unless another thread is within a call with it.
    pub fn finish(self) -> Arc<T> {
        let entry = with_table(|table| table.remove(&self.0.abi().addr()));
        drop(entry); // `self` refers to the object still
        self.0.release_uses();
        self.0
    }
}

impl<T: Object> Deref for Destroying<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A reference from one object to another that must not be destroyed before it.
///
/// The object is in use until the first call of [`Release::release`], or until this is dropped.
pub struct Use<T: Object> {
    object: Arc<T>,
    is_released: AtomicBool,
}

impl<T: Object> Use<T> {
    /// Makes `object` used.
    ///
    /// # Errors
    /// EINVAL if the object is destroyed or being destroyed.
    pub fn new(object: Arc<T>) -> Result<Self, c_int> {
        // While `object` is held, no other object has its address.
        with_table(|table| match table.get(&object.abi().addr()) {
            Some(entry) if !entry.is_being_destroyed => {
                object.base().users.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
            _ => Err(libc::EINVAL),
        })?;
        Ok(Self { object, is_released: AtomicBool::new(false) })
    }
}

impl<T: Object> Deref for Use<T> {
    type Target = Arc<T>;
    fn deref(&self) -> &Arc<T> {
        &self.object
    }
}

impl<T: Object> Drop for Use<T> {
    fn drop(&mut self) {
        self.release();
    }
}

/// References of an object to others. They are released when the program destroys the object: a
/// thread that is still within a call with it then keeps its memory, but the other objects are no
/// longer in use.
pub trait Release {
    /// Ends the use of the objects.
    fn release(&self);
}

impl<T: Object> Release for Use<T> {
    fn release(&self) {
        if !self.is_released.swap(true, Ordering::AcqRel) {
            self.object.base().users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Keeps the memory of an object that may be destroyed.
impl<T: Object> Release for Arc<T> {
    fn release(&self) {}
}

impl<R: Release + ?Sized> Release for Box<R> {
    fn release(&self) {
        (**self).release();
    }
}

impl<R: Release> Release for Option<R> {
    fn release(&self) {
        self.iter().for_each(R::release);
    }
}

impl<R: Release> Release for Vec<R> {
    fn release(&self) {
        self.iter().for_each(R::release);
    }
}

impl<A: Release, B: Release> Release for (A, B) {
    fn release(&self) {
        self.0.release();
        self.1.release();
    }
}

impl<R: Release> Release for Mutex<R> {
    fn release(&self) {
        self.lock().unwrap_or_else(PoisonError::into_inner).release();
    }
}

/// Returns the object behind the program's pointer without looking it up, for the data path.
///
/// # Safety
/// `abi` was returned by [`give`] for the same type, and the object is not destroyed.
#[inline]
pub unsafe fn borrow<'a, T: Object>(abi: *mut T::Abi) -> &'a T {
    // SAFETY: `abi` points to a live `T`, which begins with its `Abi`.
    unsafe { &*abi.cast::<T>() }
}

/// Returns the object to the program; for an error sets `errno` and returns null.
pub fn give_or_fail<T: Object>(made: Result<Arc<T>, c_int>) -> *mut T::Abi {
    match made {
        Ok(object) => give(object),
        Err(code) => errno::fail(code),
    }
}

/// Returns 0, or the error number, which `errno` has then, too.
pub fn code(done: Result<(), c_int>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(code) => {
            errno::set(code);
            code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ibv_pd;

    #[repr(C)]
    struct Pd {
        abi: UnsafeCell<ibv_pd>,
        base: Base,
        uses: Option<Use<Pd>>,
    }

    // SAFETY: the tests use one thread each.
    unsafe impl Send for Pd {}
    // SAFETY: the tests use one thread each.
    unsafe impl Sync for Pd {}

    // SAFETY: `#[repr(C)]`, and the first field is the C structure.
    unsafe impl Object for Pd {
        type Abi = ibv_pd;
        fn base(&self) -> &Base {
            &self.base
        }
        fn release_uses(&self) {
            self.uses.release();
        }
        fn shown(&self) -> (usize, u32) {
            // SAFETY: nothing writes the structure meanwhile.
            let abi = unsafe { *self.abi.get() };
            (abi.context.addr(), abi.handle)
        }
    }

    #[repr(C)]
    struct Other(UnsafeCell<ibv_pd>, Base);

    // SAFETY: the tests use one thread each.
    unsafe impl Send for Other {}
    // SAFETY: the tests use one thread each.
    unsafe impl Sync for Other {}

    // SAFETY: `#[repr(C)]`, and the first field is the C structure.
    unsafe impl Object for Other {
        type Abi = ibv_pd;
        fn base(&self) -> &Base {
            &self.1
        }
        fn release_uses(&self) {}
    }

    fn pd() -> *mut ibv_pd {
        pd_with(None)
    }

    fn pd_with(uses: Option<Use<Pd>>) -> *mut ibv_pd {
        let abi = ibv_pd { context: std::ptr::without_provenance_mut(64), handle: 7 };
        give(Arc::new(Pd { abi: UnsafeCell::new(abi), base: Base::new(64, 7), uses }))
    }

    fn begin<T: Object>(abi: *mut T::Abi) -> Result<Destroying<T>, c_int> {
        destroy::<T>(abi, |_| Ok(()))
    }

    fn error<T>(done: Result<T, c_int>) -> c_int {
        done.err().unwrap_or(0)
    }

    #[test]
    fn only_live_objects_of_the_kind_are_found() {
        let abi = pd();
        assert_eq!(live::<Pd>(abi).map(|pd| pd.base().named()), Ok((64, 7)));
        assert_eq!(error(live::<Other>(abi)), libc::EINVAL);
        assert_eq!(error(begin::<Other>(abi)), libc::EINVAL);
        assert_eq!(error(live::<Pd>(std::ptr::null_mut())), libc::EINVAL);
        drop(begin::<Pd>(abi).unwrap().finish());
        assert_eq!(error(live::<Pd>(abi)), libc::EINVAL);
        assert_eq!(error(begin::<Pd>(abi)), libc::ENOENT, "destroyed twice");
    }

    #[test]
    fn an_exposed_address_gives_access_to_the_whole_object() {
        let abi = pd();
        let exposed = live::<Pd>(abi).unwrap().exposed();
        assert_eq!(exposed, abi.addr());
        // SAFETY: the object is live.
        let pd = unsafe { borrow::<Pd>(std::ptr::with_exposed_provenance_mut(exposed)) };
        assert_eq!((pd.base.named(), pd.uses.is_some()), ((64, 7), false));
        drop(begin::<Pd>(abi).unwrap().finish());
    }

    #[test]
    fn an_overwritten_structure_is_refused_until_it_is_restored() {
        let abi = pd();
        // SAFETY: the object is live and nothing else uses it.
        let set = |handle, context| unsafe {
            (*abi).handle = handle;
            (*abi).context = std::ptr::without_provenance_mut(context);
        };
        set(8, 64);
        assert_eq!(error(live::<Pd>(abi)), libc::EINVAL);
        assert_eq!(error(begin::<Pd>(abi)), libc::ENOENT);
        set(7, 65);
        assert_eq!(error(live::<Pd>(abi)), libc::EINVAL);
        assert_eq!(error(begin::<Pd>(abi)), libc::ENOENT);
        set(7, 64);
        drop(begin::<Pd>(abi).unwrap().finish());
    }

    #[test]
    #[cfg_attr(miri, ignore)] // Many rounds: Miri is slow.
    fn an_object_in_use_is_busy_and_stays_valid() {
        let abi = pd();
        let used = Use::new(live::<Pd>(abi).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let abi = abi.addr();
            let place = move || std::ptr::without_provenance_mut(abi);
            scope.spawn(move || {
                for _ in 0..10_000 {
                    assert_eq!(error(begin::<Pd>(place())), libc::EBUSY);
                }
            });
            for _ in 0..10_000 {
                assert!(live::<Pd>(place()).is_ok(), "valid for other threads");
            }
        });
        drop(used);
        drop(begin::<Pd>(abi).unwrap().finish());
    }

    #[test]
    fn a_refused_check_changes_nothing() {
        let abi = pd();
        let refused = destroy::<Pd>(abi, |_| {
            assert!(live::<Pd>(abi).is_ok());
            Err(libc::EIO)
        });
        assert_eq!(error(refused), libc::EIO);
        assert!(live::<Pd>(abi).is_ok());
        drop(begin::<Pd>(abi).unwrap().finish());
    }

    #[test]
    fn a_destroyed_object_uses_nothing_while_a_call_still_holds_it() {
        let used = pd();
        let user = pd_with(Some(Use::new(live::<Pd>(used).unwrap()).unwrap()));
        let within_a_call = live::<Pd>(user).unwrap();
        assert_eq!(error(begin::<Pd>(used)), libc::EBUSY);
        drop(begin::<Pd>(user).unwrap().finish());
        drop(begin::<Pd>(used).expect("unused").finish());
        drop(within_a_call); // releases nothing twice
    }

    #[test]
    fn an_object_being_destroyed_is_found_but_not_used() {
        let abi = pd();
        let held = live::<Pd>(abi).unwrap();
        let destroyed = begin::<Pd>(abi).unwrap();
        assert_eq!(error(begin::<Pd>(abi)), libc::ENOENT);
        assert_eq!(error(live::<Pd>(abi)), libc::EINVAL);
        assert_eq!(error(Use::new(Arc::clone(&held))), libc::EINVAL);
        assert!(known::<Pd>(abi).is_some());
        drop(destroyed.finish());
        assert!(known::<Pd>(abi).is_none());
        assert_eq!(error(Use::new(held)), libc::EINVAL);
    }

    #[test]
    #[cfg_attr(miri, ignore)] // Miri knows no `fork`.
    fn a_forked_child_finds_the_objects_of_its_parent() {
        let abi = pd();
        // SAFETY: the child only looks up an address and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_known = known::<Pd>(abi).is_some();
            // SAFETY: the function takes no pointers.
            unsafe { libc::_exit(is_known.into()) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 1);
        drop(begin::<Pd>(abi).unwrap().finish());
    }
}
