//! The shown paths (paths in /sys and /dev at which a program sees Feroce's files), and the private
//! folder that holds these files.

use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::OnceLock;

/// The environment variable in which `feroce run` passes the path of the private folder.
const VARIABLE: &str = "FEROCE_SYSVIEW";
/// The file in the private folder that lists the shown paths, one per line.
const LIST: &str = "shown";
/// Maximum length of a path, with the zero byte.
pub const PATH_MAX: usize = 4096;

/// The path of the private folder, and the shown paths.
#[derive(Debug)]
struct View {
    root: Vec<u8>,
    shown: Vec<Vec<u8>>,
}

/// A file in the private folder: three parts of its path.
#[derive(Debug, Clone, Copy)]
pub struct PrivateFile<'a> {
    root: &'a [u8],
    shown: &'a [u8],
    rest: &'a [u8],
}

/// Reads the environment and the list, unless they have been read.
pub fn prepare() {
    view();
}

/// Returns the private file that is shown at `path`, if any.
pub fn find(path: &[u8]) -> Option<PrivateFile<'_>> {
    let is_candidate = path.first() == Some(&b'/') && matches!(component(path).0, b"sys" | b"dev");
    if is_candidate { view()?.find(path) } else { None }
}

/// Returns the path at which the private file `path` is shown: the end of `path`. `None` if the
/// file is not in the private folder.
pub fn shown_at(path: &[u8]) -> Option<&[u8]> {
    view()?.shown_at(path)
}

fn view() -> Option<&'static View> {
    static VIEW: OnceLock<Option<View>> = OnceLock::new();
    VIEW.get_or_init(View::read).as_ref()
}

impl View {
    /// Without the variable or the list, nothing is shown.
    fn read() -> Option<Self> {
        if crate::next::has_gained_privileges() {
            return None; // Its caller chose the variable.
        }
        let root = std::env::var_os(VARIABLE)?;
        let list = std::fs::read(Path::new(&root).join(LIST)).ok()?;
        Some(Self::new(root.into_vec(), &list))
    }

    fn new(root: Vec<u8>, list: &[u8]) -> Self {
        let lines = list.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Self { root, shown: lines.map(<[u8]>::to_vec).collect() }
    }

    fn find<'a>(&'a self, path: &'a [u8]) -> Option<PrivateFile<'a>> {
        self.shown.iter().find_map(|shown| {
            let rest = rest_after(path, shown)?;
            Some(PrivateFile { root: &self.root, shown, rest })
        })
    }

    fn shown_at<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        path.strip_prefix(self.root.as_slice()).filter(|rest| rest.first() == Some(&b'/'))
    }
}

impl PrivateFile<'_> {
    /// Writes the path of the file, with a zero byte at the end. Returns false if the path is too
    /// long.
    pub fn write(&self, into: &mut [u8; PATH_MAX]) -> bool {
        let mut at = 0;
        for part in [self.root, self.shown, self.rest, b"\0"] {
            let Some(space) = into.get_mut(at..at + part.len()) else { return false };
            space.copy_from_slice(part);
            at += part.len();
        }
        true
    }
}

/// Splits `path` after its first component. Skips slashes before the component, and components `.`,
/// which do not change the path.
fn component(path: &[u8]) -> (&[u8], &[u8]) {
    let mut rest = path;
    loop {
        let begin = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
        let from = &rest[begin..];
        let end = from.iter().position(|byte| *byte == b'/').unwrap_or(from.len());
        let (first, after) = from.split_at(end);
        if first != b"." {
            return (first, after);
        }
        rest = after;
    }
}

/// Returns what follows `shown` in `path`: nothing, or a slash and more. Compares text only: `..`
/// is not resolved, because the component before it may be a link.
fn rest_after<'a>(path: &'a [u8], shown: &[u8]) -> Option<&'a [u8]> {
    let (mut path, mut shown) = (path, shown);
    loop {
        let (wanted, shown_rest) = component(shown);
        if wanted.is_empty() {
            return Some(path);
        }
        let (given, rest) = component(path);
        if given != wanted {
            return None;
        }
        (path, shown) = (rest, shown_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        View::new(b"/tmp/x".to_vec(), b"/sys/class/infiniband\n/dev/infiniband\n/sys/bus/0000:00\n")
    }

    #[test]
    fn paths_below_shown_ones_are_files_of_the_folder() {
        for (path, file) in [
            ("/sys/class/infiniband", Some("/tmp/x/sys/class/infiniband")),
            ("/sys/class/infiniband/", Some("/tmp/x/sys/class/infiniband/")),
            ("//sys/./class//infiniband/a/..", Some("/tmp/x/sys/class/infiniband/a/..")),
            ("/sys/bus/0000:00/b", Some("/tmp/x/sys/bus/0000:00/b")),
            ("/dev/infiniband/uverbs0", Some("/tmp/x/dev/infiniband/uverbs0")),
            ("/sys/class/infiniband_verbs", None),
            ("/sys/class", None),
            ("/sys/class/net/../infiniband", None),
            ("/dev/null", None),
            ("/", None),
            ("/.", None),
        ] {
            let mut written = [1; PATH_MAX];
            let view = view();
            let found = view.find(path.as_bytes()).map(|file| {
                assert!(file.write(&mut written), "{path}");
                std::ffi::CStr::from_bytes_until_nul(&written).expect("a zero byte").to_bytes()
            });
            assert_eq!(found, file.map(str::as_bytes), "{path}");
        }
        let long = format!("/dev/infiniband/{}", "a".repeat(PATH_MAX - 17));
        let view = view();
        assert!(!view.find(long.as_bytes()).expect("shown").write(&mut [0; PATH_MAX]));
    }

    #[test]
    fn results_name_the_shown_path() {
        let view = view();
        let at = |path: &'static str| view.shown_at(path.as_bytes());
        assert_eq!(at("/tmp/x/sys/devices/a"), Some(b"/sys/devices/a".as_slice()));
        assert_eq!((at("/tmp/x"), at("/tmp/xy/sys"), at("/sys/devices/a")), (None, None, None));
    }

    #[test]
    fn most_paths_need_no_view() {
        for path in ["", "sys/class/infiniband", "/etc/passwd", "/", "/proc/self"] {
            assert!(find(path.as_bytes()).is_none(), "{path}");
        }
    }
}
