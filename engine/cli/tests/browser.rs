//! The HTML pages in a browser, narrow and wide, light and dark: complete, readable, without errors
//! and without a scroll bar at the bottom.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Widths of a phone and of a desktop, in CSS pixels.
const WIDTHS: [u32; 2] = [390, 1280];
const SCHEMES: [&str; 2] = ["light", "dark"];

/// A folder of one test. Dropping this value removes the folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").to_owned()
    }

    /// The document that the browser makes of a page, with what its scripts have changed.
    fn document(&self, page: &str) -> String {
        let output = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
            .args(["--window-size=1400,1000", "--dump-dom"])
            .arg(format!("--user-data-dir={}", self.path("profile")))
            .arg(format!("file://{page}"))
            .output()
            .expect("chromium is installed");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !log.contains("CONSOLE"), "{log}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Checks that a page fits each width and has the colours of each scheme. Returns the document.
    fn check(&self, page: &str) -> String {
        let text = fs::read_to_string(page).expect("a page");
        for scheme in SCHEMES {
            for (width, [needs, has, letters]) in WIDTHS.iter().zip(self.sizes(&text, scheme)) {
                assert!(needs <= has, "{page}: {width} pixels, {scheme}: needs {needs} of {has}");
                let fits = if scheme == "light" { letters < 100 } else { letters > 155 };
                assert!(fits, "{page}, {scheme}: letters have a brightness of {letters} of 255");
            }
        }
        self.document(page)
    }

    /// For each width: the width that the page needs, the one that it has, and the brightness of
    /// its letters. The page is shown in frames, since a browser's window has a minimum width.
    fn sizes(&self, text: &str, scheme: &str) -> [[u32; 3]; 2] {
        let source = text.replace('&', "&amp;").replace('"', "&quot;");
        let mut frames = String::from("<!doctype html><title></title>");
        for width in WIDTHS {
            let _ = write!(
                frames,
                "<iframe style=\"width:{width}px;height:900px;border:0;color-scheme:{scheme}\" \
                 srcdoc=\"{source}\"></iframe>"
            );
        }
        frames += "<script>onload = () => {
            document.title = [...document.querySelectorAll('iframe')].map(frame => {
                const page = frame.contentDocument, root = page.documentElement;
                const letters = getComputedStyle(page.body).color.match(/[0-9]+/)[0];
                return [root.scrollWidth, frame.contentWindow.innerWidth, letters].join(' ');
            }).join(' ');
        }</script>";
        let file = self.path("frames.html");
        fs::write(&file, frames).expect("a file");
        let shown = self.document(&file);
        let title = shown.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
        let numbers =
            title.expect("a title").0.split(' ').map(|word| word.parse().expect("a number"));
        let numbers: Vec<u32> = numbers.collect();
        [[numbers[0], numbers[1], numbers[2]], [numbers[3], numbers[4], numbers[5]]]
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `feroce`; `code` is the expected exit code.
fn feroce(arguments: &[&str], code: i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_feroce")).args(arguments).output();
    let output = output.expect("feroce runs");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
}

fn in_repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    path.canonicalize().expect("a file").to_str().expect("text").to_owned()
}

#[test]
#[ignore = "needs chromium; scripts/test.sh runs it"]
fn the_report_of_a_scenario() {
    let folder = Folder::new("browser-report");
    feroce(&["fabric", "run", "swift", "--out", &folder.path("data")], 0);
    feroce(&["fabric", "report", &folder.path("data"), "--out", &folder.path("report")], 0);
    let shown = folder.check(&folder.path("report/report.html"));
    let charts = shown.matches("<svg role").count();
    assert!(charts > 0 && shown.matches("</svg>").count() == charts, "a chart was cut short");
}

#[test]
#[ignore = "needs chromium; scripts/test.sh runs it"]
fn the_judgement_of_captures() {
    let folder = Folder::new("browser-check");
    let [retries, losses] = ["ops_retry_exhaust", "loss_netemB_write"]
        .map(|name| in_repository(&format!("tests/captures/rxe/{name}.pcap.zst")));
    let page = folder.path("page.html");
    feroce(&["conform", "check", &retries, "--html", &page], 3);
    let shown = folder.check(&page);
    assert_eq!(shown.matches("</svg>").count(), 2, "the graph and the ladder are complete");
    assert!(shown.contains("Why it failed"), "{shown}");
    feroce(&["conform", "check", &retries, &losses, "--html", &page], 3);
    folder.check(&page);
}

#[test]
#[ignore = "needs chromium; scripts/test.sh runs it"]
fn the_pauses_of_a_capture() {
    let folder = Folder::new("browser-decode");
    let (capture, page) = (folder.path("storm.pcap"), folder.path("page.html"));
    feroce(&["pfc", "send", "storm", "--pcap", &capture, "--for", "10ms"], 0);
    feroce(&["pfc", "decode", &capture, "--rate", "100G", "--frames", "none", "--html", &page], 0);
    let shown = folder.check(&page);
    assert!(shown.contains("</svg>"), "{shown}");
}

#[test]
#[ignore = "needs chromium; scripts/test.sh runs it"]
fn the_rules_that_the_code_cites() {
    Folder::new("browser-compliance").check(&in_repository("docs/compliance.html"));
}
