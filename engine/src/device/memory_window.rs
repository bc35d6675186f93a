//! The handle to a memory window.

use feroce_wire::Key;

use super::{DeviceError, PostError, ProtectionDomain, QueuePair};
use crate::memory::{WindowBind, WindowType};
use crate::verbs::{Data, LocalOp, SendFlags, SendOp, SendRequest};

/// A memory window: its own key for part of a region, bound and invalidated through a send queue.
/// Dropping the window unbinds it.
///
/// Type 1 is bound by [`QueuePair::bind_mw`], type 2 by [`LocalOp::Bind`] with a key of
/// [`MemoryWindow::rkey_with`].
#[derive(Debug)]
pub struct MemoryWindow {
    key: Key,
    window: WindowType,
    /// State of the generator of key variants: a peer that knows one key cannot derive the next.
    variants: u64,
    pd: ProtectionDomain,
}

impl ProtectionDomain {
    /// Makes an unbound window; no peer can use its key yet.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`]: windows count as memory regions. [`DeviceError::System`] without
    /// randomness.
    pub fn alloc_mw(&self, window: WindowType) -> Result<MemoryWindow, DeviceError> {
        let random = self.device.random()?.to_le_bytes();
        let [variant, _, _, _, _, _, _, _, variants @ ..] = random;
        let key = self.device.memory.insert_window(window, self.id, variant);
        let key = key.map_err(|_| DeviceError::Exhausted("memory regions and windows"))?;
        let variants = u64::from_le_bytes(variants);
        Ok(MemoryWindow { key, window, variants, pd: self.clone() })
    }
}

impl MemoryWindow {
    /// Returns the key. Type 1: the key of the last bind that was posted. Type 2: the key that the
    /// window was made with.
    pub fn rkey(&self) -> Key {
        self.key
    }

    /// Returns the key with another variant, for a type 2 bind.
    pub fn rkey_with(&self, variant: u8) -> Key {
        Key::from_parts(self.key.index(), variant)
    }

    /// Returns the type of the window.
    pub fn window_type(&self) -> WindowType {
        self.window
    }

    /// Returns a key with a variant other than the current one.
    fn new_key(&mut self) -> Key {
        loop {
            // SplitMix64: one byte of earlier output does not reveal the next.
            self.variants = self.variants.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.variants ^ self.variants >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            let [variant, ..] = (mixed ^ mixed >> 31).to_le_bytes();
            if variant != self.key.variant() {
                return self.rkey_with(variant);
            }
        }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let device = &self.pd.device;
        device.memory.drop_window(self.key);
        device.quiesce();
        device.memory.release(self.key);
    }
}

impl QueuePair {
    /// Binds a type 1 window through the send queue, in its order, as `ibv_bind_mw`. It completes
    /// as [`CompletionOpcode::BindWindow`](crate::verbs::CompletionOpcode::BindWindow). Returns the
    /// window's new key, which has a new variant; `bind.rkey` is ignored.
    ///
    /// # Errors
    /// [`PostError::WindowType`] for a type 2 window; otherwise as [`QueuePair::post_send`].
    /// Nothing is posted then, and the key stays.
    pub fn bind_mw(
        &mut self,
        wr_id: u64,
        window: &mut MemoryWindow,
        bind: &WindowBind,
        flags: SendFlags,
    ) -> Result<Key, PostError> {
        if window.window != WindowType::One {
            return Err(PostError::WindowType);
        }
        let rkey = window.new_key();
        let op = SendOp::Local(LocalOp::Bind(WindowBind { rkey, ..*bind }));
        self.post_send(&SendRequest { wr_id, op, data: Data::Sges(&[]), flags })?;
        window.key = rkey;
        Ok(rkey)
    }
}
