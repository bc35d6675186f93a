//! HTTP requests and responses as values. httparse parses the head of a request.

/// Maximum length of the head of a request in bytes.
pub const REQUEST_MAX: usize = 8 << 10;
/// Maximum number of fields of a request.
const FIELDS_MAX: usize = 64;
/// Where the metrics are.
const PATH: &str = "/metrics";

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// The metrics; `has_body`: false for a HEAD request.
    Metrics { has_body: bool },
    /// The response is an error.
    Refused(Status),
}

/// The status of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooLong,
    Failed,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::Failed => "500 Internal Server Error",
        }
    }

    /// The body of an error.
    const fn text(self) -> &'static str {
        match self {
            Self::NotFound => "not found: the metrics are at /metrics\n",
            Self::MethodNotAllowed => "only GET and HEAD are served\n",
            Self::TooLong => "the request is too long\n",
            Self::Ok | Self::BadRequest => "this is no HTTP/1 request\n",
            Self::Failed => "the metrics cannot be written\n",
        }
    }
}

/// Parses the bytes received so far. Returns `None` if more must come.
pub fn parse(bytes: &[u8]) -> Option<Request> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Request::Refused(Status::TooLong));
        }
        Err(_) => return Some(Request::Refused(Status::BadRequest)),
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    Some(match (path == PATH, request.method.unwrap_or_default()) {
        (false, _) => Request::Refused(Status::NotFound),
        (true, "GET") => Request::Metrics { has_body: true },
        (true, "HEAD") => Request::Metrics { has_body: false },
        (true, _) => Request::Refused(Status::MethodNotAllowed),
    })
}

/// The response with `body`; without the body itself for a HEAD request.
pub fn response(content_type: &str, body: &str, has_body: bool) -> Vec<u8> {
    let mut response = head(Status::Ok, content_type, body.len());
    response += if has_body { body } else { "" };
    response.into_bytes()
}

/// The response that says what is wrong.
pub fn error(status: Status) -> Vec<u8> {
    (head(status, "text/plain; charset=utf-8", status.text().len()) + status.text()).into_bytes()
}

fn head(status: Status, content_type: &str, length: usize) -> String {
    let allow = if status == Status::MethodNotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{allow}\
         Connection: close\r\n\r\n",
        status.line()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_and_bounded() {
        let metrics = |has_body| Some(Request::Metrics { has_body });
        let refused = |status| Some(Request::Refused(status));
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), metrics(true));
        assert_eq!(parse(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), metrics(true));
        assert_eq!(parse(b"HEAD /metrics HTTP/1.1\r\n\r\n"), metrics(false));
        assert_eq!(parse(b"GET /metr"), None);
        assert_eq!(parse(b""), None);
        for path in ["/", "/metrics/", "/metric", "//metrics", "*"] {
            let request = format!("GET {path} HTTP/1.1\r\n\r\n");
            assert_eq!(parse(request.as_bytes()), refused(Status::NotFound), "{path}");
        }
        let post = b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(parse(post), refused(Status::MethodNotAllowed));
        for junk in [&b"\x16\x03\x01\x02\0"[..], b"hello world\n", b"PRI * HTTP/2.0\r\n\r\nSM"] {
            assert_eq!(parse(junk), refused(Status::BadRequest), "{junk:?}");
        }
        assert_eq!(parse(&vec![b'A'; REQUEST_MAX]), refused(Status::TooLong));
        let fields = "X: y\r\n".repeat(FIELDS_MAX + 1);
        let request = format!("GET /metrics HTTP/1.1\r\n{fields}\r\n");
        assert_eq!(parse(request.as_bytes()), refused(Status::TooLong));
    }

    #[test]
    fn responses_have_their_length() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let body = "a 1\n";
        let full = text(response("text/x", body, true));
        assert!(
            full.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 4\r\n")
        );
        assert!(full.ends_with("\r\n\r\na 1\n"));
        assert_eq!(text(response("text/x", body, false)) + body, full);
        let refused = text(error(Status::MethodNotAllowed));
        assert!(refused.contains("\r\nAllow: GET, HEAD\r\n"), "{refused}");
    }
}
