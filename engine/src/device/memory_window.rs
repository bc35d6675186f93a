//! The program's handle to a memory window.

use feroce_wire::Key;

use super::{DeviceError, PostError, ProtectionDomain, QueuePair};
use crate::memory::{WindowBind, WindowType};
use crate::verbs::{Data, LocalOp, SendFlags, SendOp, SendRequest};

/// A memory window: a key of its own for part of a region, which a send queue gives and takes back. Dropping it
/// takes it away from where it is bound.
///
/// Type 1 is bound by [`QueuePair::bind_mw`], type 2 by [`LocalOp::Bind`] with a key of [`MemoryWindow::rkey_with`].
#[derive(Debug)]
pub struct MemoryWindow {
    key: Key,
    window: WindowType,
    /// Where the next variants come from: who knows one key cannot count on to the next.
    variants: u64,
    pd: ProtectionDomain,
}

impl ProtectionDomain {
    /// Makes a window, not bound: no peer can use its key yet.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`]: windows count as memory regions; [`DeviceError::System`] without randomness.
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
    /// Its key: of type 1, the one it has or will have by the newest bind that was posted; of type 2, the one it
    /// was made with.
    pub fn rkey(&self) -> Key {
        self.key
    }

    /// Its key with another variant, the program's choice for a type 2 bind.
    pub fn rkey_with(&self, variant: u8) -> Key {
        Key::from_parts(self.key.index(), variant)
    }

    /// Which of the two kinds it is.
    pub fn window_type(&self) -> WindowType {
        self.window
    }

    /// Another variant than the present one.
    fn draw(&mut self) -> Key {
        loop {
            // SplitMix64: what comes next cannot be told from one byte of what came before.
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
    /// Binds a type 1 window through the send queue, as `ibv_bind_mw`: in its order, and complete as
    /// [`CompletionOpcode::BindWindow`](crate::verbs::CompletionOpcode::BindWindow). Returns the key that the window
    /// has from then on, with a new variant (`bind.rkey` counts for nothing).
    ///
    /// # Errors
    /// [`PostError::WindowType`] for a type 2 window; as [`QueuePair::post_send`]. Nothing was posted then, and
    /// the key is the old one.
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
        let rkey = window.draw();
        let op = SendOp::Local(LocalOp::Bind(WindowBind { rkey, ..*bind }));
        self.post_send(&SendRequest { wr_id, op, data: Data::Sges(&[]), flags })?;
        window.key = rkey;
        Ok(rkey)
    }
}
