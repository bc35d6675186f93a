//! The HTML page of a check in a browser: it shows the graphics, and the browser logs no error.

use std::fs;
use std::path::Path;
use std::process::Command;

use feroce_conform::check::{Checker, Filter};
use feroce_conform::report;
use feroce_conform::trace::Trace;

#[test]
#[ignore = "needs chromium; scripts/test.sh runs it"]
fn a_browser_shows_the_page_without_errors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let capture = root.join("captures/rxe/ops_retry_exhaust.pcap.zst");
    let mut trace = Trace::open(&[capture]).expect("a capture");
    let (checked, ended) = Checker::new(Filter::default(), true).check(&mut trace);
    ended.expect("read to the end");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conform-browser");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let page = folder.join("page.html");
    fs::write(&page, report::html(&checked)).expect("a page");
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium is installed");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !log.contains("CONSOLE"), "{log}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(shown.matches("</svg>").count(), 2, "the graph and the ladder are complete");
    assert!(shown.contains("Why it failed"), "{shown}");
    fs::remove_dir_all(&folder).expect("removed");
}
