//! Instructions of classic BPF, in which socket filters are written, and the two simplest filters.

/// One instruction (`struct sock_filter`).
pub(super) type Instruction = libc::sock_filter;

// Instruction codes of classic BPF.
pub(super) const LOAD_WORD: u16 = 0x20;
pub(super) const LOAD_HALF: u16 = 0x28;
pub(super) const LOAD_BYTE: u16 = 0x30;
pub(super) const LOAD_HALF_BEHIND_X: u16 = 0x48;
/// X = 4 * (byte & 15): the length of an IPv4 header.
pub(super) const LOAD_X_HEADER: u16 = 0xb1;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JUMP_IF_EQUAL: u16 = 0x15;
pub(super) const JUMP_IF_ANY_BIT: u16 = 0x45;
pub(super) const JUMP_IF_GREATER: u16 = 0x25;
pub(super) const RETURN: u16 = 0x06;
pub(super) const RETURN_LOADED: u16 = 0x16;
pub(super) const LOAD_LENGTH: u16 = 0x80;
pub(super) const LOAD_CONSTANT: u16 = 0x00;
pub(super) const LOAD_NOTE: u16 = 0x60;
pub(super) const MASK: u16 = 0x54;
pub(super) const MODULO: u16 = 0x94;
pub(super) const STORE_NOTE: u16 = 0x02;

/// The instruction `code` with operand `k`, without jumps.
pub(super) const fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

/// A program that accepts no frame.
pub(super) const NOTHING: [Instruction; 1] = [plain(RETURN, 0)];

/// A program that accepts every frame in full length.
pub(super) const EVERYTHING: [Instruction; 1] = [plain(RETURN, u32::MAX)];
