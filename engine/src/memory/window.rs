//! Memory windows: part of a region under a key of its own, bound and invalidated by a send queue.
//!
//! Windows are slots of the table of regions. A bound window holds the host address itself, so that
//! an access through it costs the same as through a region. The region counts its windows and
//! cannot be deregistered while windows are bound. Binding and invalidation happen in a core's
//! turn: they take no lock, and change a slot while it is claimed.
//!
//! A type 2 window belongs to the QP it was bound on, and only that QP's core changes it. A type 1
//! window is usable by all QPs of its domain: when a bind completes, other cores may still be
//! processing the last packet for which they found the old key.

use std::sync::atomic::Ordering;

use feroce_wire::{Key, Qpn};

use super::key_word::State;
use super::region::{Access, AccessError, Kind, MrTable, PdId, Region, Scope, Slot, TableFull};

/// Types of windows, as in verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Type 1: usable by every QP of the domain; can be bound again while bound.
    One,
    /// Type 2B: usable by the QP it was bound on, until it is invalidated.
    Two,
}

/// Arguments of a bind, as `ibv_mw_bind_info`, and the new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBind {
    /// The window, by its key index, and the variant of its new key.
    pub rkey: Key,
    /// Key of the region.
    pub lkey: Key,
    /// First byte, as an address of the region.
    pub addr: u64,
    /// Length in bytes. Zero unbinds a type 1 window.
    pub length: u64,
    /// Rights of the key: those of [`Access::REMOTE`], and [`Access::ZERO_BASED`].
    pub access: Access,
}

/// Why a window is not bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The region's key, domain or bounds.
    #[error(transparent)]
    Region(#[from] AccessError),
    /// A rule for windows.
    #[error("the window cannot be bound: {0}")]
    Window(&'static str),
}

impl MrTable {
    /// Makes an unbound window of `pd`. Its key has the variant `variant` and is invalid until the
    /// window is bound.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn insert_window(
        &self,
        window: WindowType,
        pd: PdId,
        variant: u8,
    ) -> Result<Key, TableFull> {
        let (slot, key) = self.take_slot(variant)?;
        let before = slot.word().claim().expect("only the thread that took a free slot changes it");
        let kind = match window {
            WindowType::One => Kind::Window1,
            WindowType::Two => Kind::Window2,
        };
        slot.write(&Region { iova: 0, host: 0, len: 0, pd, access: Access::NONE }, kind);
        slot.word().publish(before, key, false);
        Ok(key)
    }

    /// Unbinds a window and prevents further binds, whatever its current key is. Its slot stays in
    /// use until [`MrTable::release`].
    pub fn drop_window(&self, window: Key) {
        let Some(slot) = self.slot(window) else { return };
        let before = slot.word().wait_and_claim();
        let (pd, access) = (slot.pd(), Access::NONE);
        slot.write(&Region { iova: 0, host: 0, len: 0, pd, access }, Kind::Plain);
        self.end_binding(slot, before, window);
    }

    /// Binds a window, for a request of the QP `qp` of domain `pd`.
    ///
    /// # Errors
    /// [`BindError`]; nothing is changed then.
    pub fn bind(&self, bind: &WindowBind, pd: PdId, qp: Qpn) -> Result<(), BindError> {
        let slot = self.slot(bind.rkey);
        let slot = slot.ok_or(BindError::Window("the key belongs to no window"))?;
        // Before the checks: the claim below fails if the slot has changed since.
        let before = slot.word().begin();
        let kind = slot.kind();
        self.check_window(slot, kind, bind, pd)?;
        if before.is_valid() && kind == Kind::Window2 {
            let rule = "a bound type 2 window must be invalidated first"; // o10-37.2.30
            return Err(BindError::Window(rule));
        }
        let region = match bind.length {
            0 => None,
            _ => Some(self.region_for(bind, pd)?),
        };
        if let Some((parent, _)) = region
            && !self.slots[parent].add_window()
        {
            return Err(BindError::Region(AccessError::Key)); // The region is being deregistered.
        }
        if !slot.word().claim_from(before) {
            if let Some((parent, _)) = region {
                self.slots[parent].remove_window();
            }
            return Err(BindError::Window("another core is changing the window"));
        }
        if before.is_valid() {
            self.slots[slot.parent.load(Ordering::Relaxed) as usize].remove_window();
        }
        if let Some((parent, view)) = region {
            slot.write(&view, kind);
            slot.parent.store(u32::try_from(parent).expect("24 bits"), Ordering::Relaxed);
            slot.qp.store(qp.value(), Ordering::Relaxed);
        }
        slot.word().publish(before, bind.rkey, region.is_some());
        Ok(())
    }

    /// Checks the rules for the window itself.
    fn check_window(
        &self,
        slot: &Slot,
        kind: Kind,
        bind: &WindowBind,
        pd: PdId,
    ) -> Result<(), BindError> {
        let is_two = kind == Kind::Window2;
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        let unknown = bind.access.without(Access::REMOTE).without(Access::ZERO_BASED);
        let rules = [
            (!kind.is_window(), "the key belongs to no window"),
            (slot.pd() != pd, "it is in another protection domain"), // C10-72
            (unknown != Access::NONE, "a window cannot have these rights"),
            (!is_two && zero_based, "a type 1 window is not zero-based"), // o10-36.2.2
            (is_two && bind.length == 0, "a type 2 window needs a length"), // o10-37.2.40
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, rule)) => Err(BindError::Window(rule)),
            None => Ok(()),
        }
    }

    /// Returns the slot of the region that `bind` names, and the fields of the bound window.
    fn region_for(&self, bind: &WindowBind, pd: PdId) -> Result<(usize, Region), BindError> {
        let range = Some((bind.addr, bind.length));
        let target = self.locate(bind.lkey, Scope::from(pd), Access::NONE, range)?; // C10-75
        let region = self.find(bind.lkey)?;
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let missing = flushes.without(region.access);
        let rules = [
            (target.kind != Kind::Plain, "its memory must be resident"),
            // C10-73
            (!region.access.contains(Access::MW_BIND), "the region does not allow windows"),
            // C10-74
            (writes && !region.access.contains(Access::LOCAL_WRITE), "the region is read-only"),
            (bind.access.intersects(missing), "the region does not allow this kind of flush"),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(broken, _)| *broken) {
            return Err(BindError::Window(rule));
        }
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        let iova = if zero_based { 0 } else { bind.addr };
        let (host, len, access) = (target.host, bind.length, bind.access);
        Ok((self.slot_index(bind.lkey), Region { iova, host, len, pd, access }))
    }

    /// Checks that a request of the QP `qp` of `pd`, or of its peer, may invalidate `key`.
    ///
    /// # Errors
    /// [`AccessError::Rights`] for a type 1 window and for a region without
    /// [`Access::REMOTE_INVALIDATE`]; [`AccessError::OtherQp`]; [`AccessError::Bound`]; as
    /// [`MrTable::check`].
    pub fn may_invalidate(&self, key: Key, pd: PdId, qp: Qpn) -> Result<(), AccessError> {
        self.state_to_invalidate(key, pd, qp).map(drop)
    }

    /// As [`Self::may_invalidate`]; returns the state for which that holds.
    fn state_to_invalidate(&self, key: Key, pd: PdId, qp: Qpn) -> Result<State, AccessError> {
        let (view, state) = self.view_at(key)?;
        let scope = Scope { pd, peer_of: Some(qp) };
        match view.kind {
            Kind::Window1 => return Err(AccessError::Rights),
            Kind::Window2 => view.target(scope, Access::NONE, None)?,
            Kind::Plain | Kind::OnDemand | Kind::Null => {
                let target = view.target(scope, Access::REMOTE_INVALIDATE, None)?;
                if self.slot(key).is_some_and(Slot::has_windows) {
                    return Err(AccessError::Bound);
                }
                target
            }
        };
        Ok(state)
    }

    /// Invalidates `key`, as LOCAL INVALIDATE and SEND WITH INVALIDATE do.
    ///
    /// # Errors
    /// As [`MrTable::may_invalidate`].
    pub fn invalidate(&self, key: Key, pd: PdId, qp: Qpn) -> Result<(), AccessError> {
        let before = self.state_to_invalidate(key, pd, qp)?;
        let slot = self.slot(key).ok_or(AccessError::Key)?;
        // Another core may have bound the window anew since the check.
        if !slot.word().claim_from(before) {
            return Err(AccessError::Key);
        }
        match slot.kind().is_window() {
            true => self.end_binding(slot, before, key),
            false => slot.word().publish(before, key, false),
        }
        Ok(())
    }

    /// Unbinds every type 2 window that is bound on `qp`, which is being destroyed.
    pub fn unbind_all_of(&self, qp: Qpn) {
        self.unbind_where(|slot| {
            slot.kind() == Kind::Window2 && slot.qp.load(Ordering::Relaxed) == qp.value()
        });
    }

    /// Unbinds every window of the region `key`, which is closed and withdrawn, and to which no
    /// core can still be binding.
    pub fn unbind_all_from(&self, key: Key) {
        let parent = u32::try_from(self.slot_index(key)).expect("24 bits");
        self.unbind_where(|slot| {
            slot.kind().is_window() && slot.parent.load(Ordering::Relaxed) == parent
        });
    }

    fn unbind_where(&self, is_selected: impl Fn(&Slot) -> bool) {
        for slot in self.used_slots() {
            loop {
                let before = slot.word().begin();
                if before.is_busy() {
                    std::hint::spin_loop(); // A core is changing the slot, and finishes soon.
                } else if !before.is_valid() || !is_selected(slot) {
                    break;
                } else if slot.word().claim_from(before) {
                    self.end_binding(slot, before, before.key());
                    break;
                }
            }
        }
    }

    /// Ends the binding of a claimed window.
    fn end_binding(&self, slot: &Slot, before: State, key: Key) {
        if before.is_valid() {
            self.slots[slot.parent.load(Ordering::Relaxed) as usize].remove_window();
        }
        slot.word().publish(before, key, false);
    }
}
