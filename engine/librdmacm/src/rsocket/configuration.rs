//! Defaults set by the host's administrator, in the files that rdma-core's manual page names.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use super::protocol;
use super::stream::SEND_LOW_WATER;

/// Folder of the files.
const FOLDER: &str = "/etc/rdma/rsocket";

/// Defaults of sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// How long a call polls for completions before it sleeps.
    pub polling_time: Duration,
    /// Bytes of inline data in a work request.
    pub inline: u16,
    /// Work requests in the send queue.
    pub send_queue: u16,
    /// Messages that can be received before the program reads.
    pub receive_queue: u16,
    /// Bytes that can be received before the program reads.
    pub receive_buffer: u32,
    /// Bytes that can be queued for sending.
    pub send_buffer: u32,
    /// Buffers that the peer may write directly (`riomap`).
    pub mappings: u16,
}

impl Configuration {
    /// Reads the files in `folder`.
    fn read(folder: &Path) -> Self {
        let number = |name: &str, default: u32| {
            let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
            text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(default)
        };
        let small = |name: &str, default: u16| {
            u16::try_from(number(name, default.into())).unwrap_or(u16::MAX)
        };
        let send_buffer = number("wmem_default", 1 << 17);
        Self {
            polling_time: Duration::from_micros(number("polling_time", 10).into()),
            inline: small("inline_default", 64),
            send_queue: small("sqsize_default", 384),
            receive_queue: small("rqsize_default", 384),
            receive_buffer: number("mem_default", 1 << 17).max(1),
            send_buffer: if send_buffer < SEND_LOW_WATER {
                2 * SEND_LOW_WATER
            } else {
                send_buffer
            },
            mappings: protocol::round_mappings(small("iomap_size", 0)),
        }
    }

    /// Returns the defaults of this host; the first call reads the files.
    pub fn get() -> &'static Self {
        static READ: OnceLock<Configuration> = OnceLock::new();
        READ.get_or_init(|| Self::read(Path::new(FOLDER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_override_defaults() {
        let folder = std::env::temp_dir().join(format!("feroce-rsocket-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let defaults = Configuration::read(&folder);
        assert_eq!((defaults.inline, defaults.send_queue, defaults.mappings), (64, 384, 0));
        assert_eq!((defaults.send_buffer, defaults.receive_buffer), (131_072, 131_072));
        for (name, value) in [
            ("polling_time", "5\n"),
            ("sqsize_default", "100000"),
            ("wmem_default", "100"),
            ("mem_default", "0"),
            ("iomap_size", "300"),
            ("inline_default", "many"),
        ] {
            fs::write(folder.join(name), value).unwrap();
        }
        let read = Configuration::read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let expected = Configuration {
            polling_time: Duration::from_micros(5),
            send_queue: u16::MAX,
            send_buffer: 4096,
            receive_buffer: 1,
            mappings: 256,
            ..defaults
        };
        assert_eq!(read, expected);
    }
}
