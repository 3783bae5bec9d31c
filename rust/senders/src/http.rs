//! Requests and answers of HTTP/1.1: as much as a server of plain files needs.

use std::path::{Component, Path};

/// Longest head of a request, bytes.
const MOST_HEAD: usize = 65_536;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes of its head.
    pub length: usize,
    /// The path, without a query.
    pub path: String,
    /// Whether the connection ends with the answer.
    pub closes: bool,
}

/// What has arrived of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Its head is not whole yet.
    Part,
    /// A whole request.
    Whole(Request),
    /// Something else.
    Nonsense,
}

/// Reads the first request of what has arrived.
pub fn read(bytes: &[u8]) -> Arrived {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() > MOST_HEAD {
            Arrived::Nonsense
        } else {
            Arrived::Part
        };
    };
    let Ok(head) = std::str::from_utf8(&bytes[..end]) else {
        return Arrived::Nonsense;
    };
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some("GET"), Some(target), Some("HTTP/1.1")) = (words.next(), words.next(), words.next())
    else {
        return Arrived::Nonsense;
    };
    let closes = lines.any(|line| line.eq_ignore_ascii_case("connection: close"));
    let path = target.split('?').next().unwrap_or_default();
    Arrived::Whole(Request {
        length: end + 4,
        path: path.to_owned(),
        closes,
    })
}

/// The answer: the file, or a page that repeats the path.
pub fn answer(root: &Path, path: &str) -> Vec<u8> {
    let relative = Path::new(path.trim_start_matches('/'));
    let is_below = relative
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let name = if path == "/" {
        Path::new("index.html")
    } else {
        relative
    };
    let content = if is_below {
        std::fs::read(root.join(name)).ok()
    } else {
        None
    };
    match content {
        Some(body) => whole("200 OK", &body),
        None => whole(
            "404 Not Found",
            format!("There is no page {path}\n").as_bytes(),
        ),
    }
}

/// An answer to what is not a request.
pub fn refusal() -> Vec<u8> {
    whole("400 Bad Request", b"This is not a request.\n")
}

fn whole(status: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut answer =
        format!("HTTP/1.1 {status}\r\nServer: upshift-smoltcp\r\nContent-Length: {length}\r\n\r\n")
            .into_bytes();
    answer.extend_from_slice(body);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_once_its_head_is_whole() {
        let text = b"GET /a.bin?x=1 HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\nmore";
        for end in 0..text.len() - 4 {
            assert_eq!(read(&text[..end]), Arrived::Part, "{end}");
        }
        let request = Request {
            length: text.len() - 4,
            path: "/a.bin".to_owned(),
            closes: true,
        };
        assert_eq!(read(text), Arrived::Whole(request));
    }

    #[test]
    fn anything_else_is_nonsense() {
        for text in [
            "POST / HTTP/1.1\r\n\r\n",
            "\r\n\r\n",
            "GET /\r\n\r\n",
            "GET / HTTP/0.9\r\n\r\n",
        ] {
            assert_eq!(read(text.as_bytes()), Arrived::Nonsense, "{text:?}");
        }
        assert_eq!(read(b"GET /\xff HTTP/1.1\r\n\r\n"), Arrived::Nonsense);
        assert_eq!(read(&vec![b'x'; MOST_HEAD + 1]), Arrived::Nonsense);
    }

    #[test]
    fn files_below_the_root_and_no_others() {
        let root = std::env::temp_dir().join(format!("smoltcp-server-{}", std::process::id()));
        std::fs::create_dir_all(root.join("files")).expect("a folder");
        std::fs::write(root.join("files/a.bin"), b"12345").expect("a file");
        let text = |path: &str| String::from_utf8(answer(&root.join("files"), path)).expect("text");
        assert!(
            text("/a.bin").starts_with("HTTP/1.1 200 OK\r\n")
                && text("/a.bin").ends_with("\r\n\r\n12345")
        );
        for path in ["/../files/a.bin", "/b.bin", "//etc/passwd", "/"] {
            assert!(
                text(path).starts_with("HTTP/1.1 404") && text(path).contains(path),
                "{path}"
            );
        }
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
