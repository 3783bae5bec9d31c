//! What a client asks for.

use percent_encoding::percent_decode_str;
use quiche::h3::{self, NameValue};

/// What a client asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Without a port, in lower case.
    pub host: String,
    /// As the client wrote it, with the query.
    pub target: String,
    /// All other fields, with names in lower case.
    pub fields: Vec<(String, String)>,
}

impl Request {
    /// Reads the header section of a request; fields that are not text are passed over.
    pub fn new(list: &[h3::Header]) -> Self {
        let mut request = Self::default();
        for header in list {
            let pair = (
                std::str::from_utf8(header.name()),
                std::str::from_utf8(header.value()),
            );
            let (Ok(name), Ok(value)) = pair else {
                continue;
            };
            match name {
                ":method" => value.clone_into(&mut request.method),
                ":authority" => request.host = host_of(value),
                ":path" => value.clone_into(&mut request.target),
                "host" if request.host.is_empty() => request.host = host_of(value),
                _ if name.starts_with(':') => {}
                _ => request.fields.push((name.to_owned(), value.to_owned())),
            }
        }
        request
    }

    /// The first field of that name, empty if missing.
    pub fn field(&self, name: &str) -> &str {
        let field = self.fields.iter().find(|(known, _)| known == name);
        field.map_or("", |(_, value)| value)
    }

    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// The path without query, decoded; None if it is not valid, or leaves the folder.
    pub fn path(&self) -> Option<String> {
        let raw = self.target.split(['?', '#']).next()?;
        let path = percent_decode_str(raw).decode_utf8().ok()?;
        let mut parts: Vec<&str> = Vec::new();
        for part in path.strip_prefix('/')?.split('/') {
            match part {
                "." => {}
                ".." => {
                    parts.pop();
                }
                _ if part.contains('\0') => return None,
                _ => parts.push(part),
            }
        }
        Some(format!("/{}", parts.join("/")))
    }
}

fn host_of(authority: &str) -> String {
    let port = authority
        .rfind(':')
        .filter(|at| !authority[*at..].contains(']'));
    authority[..port.unwrap_or(authority.len())].to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str) -> Request {
        Request {
            method: "GET".to_owned(),
            host: "a.example".to_owned(),
            target: target.to_owned(),
            ..Request::default()
        }
    }

    #[test]
    fn paths_stay_in_their_folder() {
        for (target, path) in [
            ("/a/b.bin?x=1", Some("/a/b.bin")),
            ("/a/../../../etc/passwd", Some("/etc/passwd")),
            ("/%2e%2e/a", Some("/a")),
            ("/a%20b", Some("/a b")),
            ("/", Some("/")),
            ("a", None),
            ("/%ff", None),
            ("/a%00", None),
        ] {
            assert_eq!(request(target).path().as_deref(), path, "{target}");
        }
    }

    #[test]
    fn hosts_have_no_port() {
        for (authority, host) in [
            ("A.example:443", "a.example"),
            ("a.example", "a.example"),
            ("[::1]", "[::1]"),
            ("[::1]:8443", "[::1]"),
        ] {
            assert_eq!(host_of(authority), host);
        }
    }
}
