//! Files that Feroce writes: captures, reports, figures.
//!
//! As tcpdump does, Feroce overwrites a file that exists and follows links, except where others may
//! put them: in a folder where every user makes files, such as `/tmp`, and in a folder of another
//! user. There a link, and in `/tmp` also a file of another user, is refused: otherwise somebody
//! who guesses a name could choose which file a privileged Feroce overwrites. (The kernel's
//! `fs.protected_symlinks` and `fs.protected_regular` do the same where they are on.) Captures
//! contain payload, so only their owner may read them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Permissions of a file that only its owner may read.
const PRIVATE: u32 = 0o600;
/// Permissions of other files, before the umask of the process.
const READABLE: u32 = 0o666;
const STICKY: u32 = 0o1000;
const WRITABLE_BY_ALL: u32 = 0o002;

/// Creates or overwrites the file `path`, which only its owner may read: for frames with payload.
///
/// # Errors
/// As for [`File::create`]; [`io::ErrorKind::PermissionDenied`] for what others may have put there.
pub fn create_private(path: impl AsRef<Path>) -> io::Result<File> {
    let file = open(path.as_ref(), PRIVATE, false)?;
    let found = file.metadata()?;
    // A file from before may be readable. Those of others, of devices and pipes stay as they are.
    if found.is_file() && found.uid() == own_user() && found.mode() & 0o777 != PRIVATE {
        file.set_permissions(Permissions::from_mode(PRIVATE))?;
    }
    Ok(file)
}

/// Creates or overwrites the file `path`: for reports and figures.
///
/// # Errors
/// As for [`create_private`].
pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
    open(path.as_ref(), READABLE, false)
}

/// Opens the file `path` for appending, and creates it if it does not exist.
///
/// # Errors
/// As for [`create_private`].
pub fn append(path: impl AsRef<Path>) -> io::Result<File> {
    open(path.as_ref(), READABLE, true)
}

/// Creates or overwrites the file `path` with `contents`.
///
/// # Errors
/// As for [`create_private`], and errors of writing. The message names the file.
pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let path = path.as_ref();
    let written = create(path).and_then(|mut file| file.write_all(contents.as_ref()));
    written.map_err(|error| named(path, &error))
}

/// Makes the folder `path`, and those above it.
///
/// # Errors
/// As for [`fs::create_dir_all`](std::fs::create_dir_all). The message names the folder.
pub fn create_folder(path: impl AsRef<Path>) -> io::Result<()> {
    std::fs::create_dir_all(&path).map_err(|error| named(path, &error))
}

/// The error `error` of the file or folder `path`, which its message names.
pub fn named(path: impl AsRef<Path>, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.as_ref().display()))
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn open(path: &Path, mode: u32, appends: bool) -> io::Result<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new(".")).metadata()?;
    let of_all = folder.mode() & WRITABLE_BY_ALL != 0;
    let of_other = ![own_user(), 0].contains(&folder.uid());
    let mut options = OpenOptions::new();
    options.write(true).append(appends).create(true).mode(mode);
    if !of_all && !of_other {
        return options.truncate(!appends).open(path);
    }
    let refused = |what: &str| {
        let text = format!("{} is {what}: use another name or folder", path.display());
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    };
    let opened = options.custom_flags(libc::O_NOFOLLOW).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refused("a link that another user may have put there"),
        _ => error,
    })?;
    let found = file.metadata()?;
    let is_shared = of_all && folder.mode() & STICKY != 0;
    let owners = [own_user(), folder.uid()];
    if is_shared && found.is_file() && (!owners.contains(&found.uid()) || found.nlink() > 1) {
        return Err(refused("a file of another user"));
    }
    // Only now: a file that is refused keeps its contents.
    if !appends && found.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::path::PathBuf;

    use super::*;

    /// A folder with the permissions `mode`, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("fr-files-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Self(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o777
    }

    #[test]
    fn captures_are_private_also_where_a_file_was() {
        let folder = Folder::new("private", 0o755);
        let (new, old) = (folder.file("new"), folder.file("old"));
        fs::write(&old, "readable before").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        for path in [new, old] {
            create_private(&path).unwrap().write_all(b"frames").unwrap();
            assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o600, b"frames".to_vec()));
        }
        let report = folder.file("report");
        write(&report, "longer text").unwrap();
        write(&report, "text").unwrap();
        append(&report).unwrap().write_all(b" and more").unwrap();
        assert_eq!(fs::read(&report).unwrap(), b"text and more");
        assert_ne!(mode(&report), 0o600);
        create_private("/dev/null").unwrap();
        assert_eq!(mode(Path::new("/dev/null")), 0o666, "a device stays as it is");
    }

    #[test]
    fn links_are_followed_only_in_folders_of_the_user() {
        let (own, shared) = (Folder::new("own", 0o755), Folder::new("shared", 0o1777));
        let target = own.file("target");
        for (folder, is_followed) in [(&own, true), (&shared, false)] {
            fs::write(&target, "precious").unwrap();
            let link = folder.file("link");
            symlink(&target, &link).unwrap();
            let dangling = folder.file("dangling");
            symlink(own.file("none"), &dangling).unwrap();
            for link in [link, dangling] {
                for made in [create(&link), create_private(&link)] {
                    assert_eq!(made.is_ok(), is_followed, "{}", link.display());
                    let why = made.err().map(|error| error.to_string()).unwrap_or_default();
                    assert_eq!(why.contains("is a link"), !is_followed, "{why}");
                }
            }
            assert_eq!(fs::read(&target).unwrap().is_empty(), is_followed);
            let _ = fs::remove_file(own.file("none"));
        }
        // The user's own files are overwritten there.
        let file = shared.file("file");
        write(&file, "longer").unwrap();
        write(&file, "text").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"text");
    }

    #[test]
    fn files_of_others_are_not_overwritten_in_shared_folders() {
        if own_user() != 0 {
            feroce_test_skip::skip("files of others need root");
            return;
        }
        let shared = Folder::new("others", 0o1777);
        let file = shared.file("file");
        fs::write(&file, "theirs").unwrap();
        chown(&file, Some(65534), None).unwrap();
        let error = create(&file).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read(&file).unwrap(), b"theirs");
        // A folder of another user: links are not followed.
        let folder = Folder::new("theirs", 0o755);
        symlink(&file, folder.file("link")).unwrap();
        chown(&folder.0, Some(65534), None).unwrap();
        assert!(create(folder.file("link")).is_err());
        write(folder.file("report"), "text").unwrap();
    }
}
