//! The socket file by which the two ends of a memif find each other: this does what DPDK's driver
//! leaves undone.

use std::borrow::Cow;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::error::DpdkError;

/// Whether this is a memif's name, with or without parameters.
pub(crate) fn is_one(device: &str) -> bool {
    device.starts_with("net_memif")
}

/// Prepares the socket and returns the device's name with an absolute path, since DPDK refuses
/// others. A missing directory is made for this user alone, since any process that can connect can
/// end this one. For a server, a socket without a listener is removed: a killed server leaves one
/// behind, which would block the new one.
pub(crate) fn prepared(device: &str) -> Result<Cow<'_, str>, DpdkError> {
    let parameters = || device.split(',').skip(1);
    let value = |key| parameters().find_map(|one| one.strip_prefix(key)?.strip_prefix('='));
    let (Some(given), Some("no")) = (value("socket"), value("socket-abstract")) else {
        return Ok(device.into());
    };
    if !is_one(device) {
        return Ok(device.into());
    }
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |cause| DpdkError::Socket {
            action,
            path,
            cause,
        }
    };
    let given_path = Path::new(given);
    let socket = std::path::absolute(given_path)
        .map_err(failed("find the directory of socket", given_path))?;
    if let Some(directory) = socket.parent() {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(directory);
        made.map_err(failed("make directory", directory))?;
    }
    let serves = matches!(value("role"), Some("server" | "master"));
    if serves && is_left_over(&socket) {
        fs::remove_file(&socket).map_err(failed("remove the socket left over", &socket))?;
    }
    Ok(device
        .replacen(
            &format!(",socket={given}"),
            &format!(",socket={}", socket.display()),
            1,
        )
        .into())
}

/// Whether this is a socket without a server. A real connection could end the server, so this makes
/// none: memif's sockets are of another type, which the kernel checks only if there is a listener.
fn is_left_over(socket: &Path) -> bool {
    let is_socket = |file: fs::Metadata| file.file_type().is_socket();
    fs::symlink_metadata(socket).is_ok_and(is_socket)
        && UnixStream::connect(socket)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn a_servers_socket_has_a_directory_of_its_own_and_is_not_in_the_way() {
        let top = std::env::temp_dir().join(format!("shinjuku-memif-of-{}", std::process::id()));
        let directory = top.join("new");
        let socket = directory.join("socket");
        let device = |role: &str| {
            let socket = socket.display();
            format!("net_memif0,id=1,role={role},socket={socket},socket-abstract=no")
        };
        let server = device("server");
        assert_eq!(prepared(&server).unwrap(), server);
        let mode = fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);

        // A killed process leaves its socket like this.
        drop(UnixListener::bind(&socket).unwrap());
        prepared(&device("client")).unwrap();
        assert!(socket.exists(), "it is not a client's to remove");
        prepared(&server).unwrap();
        assert!(!socket.exists());

        // Like memif's, the socket is of another type.
        let serving = UnixDatagram::bind(&socket).unwrap();
        prepared(&server).unwrap();
        assert!(socket.exists(), "it has a server");
        drop(serving);
        fs::remove_file(&socket).unwrap();
        fs::write(&socket, "no socket").unwrap();
        prepared(&server).unwrap();
        assert!(socket.exists());
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn other_devices_and_sockets_stay_as_they_are() {
        for device in [
            "net_memif0,role=server,socket=here",
            "net_memif0,role=server,socket=here,socket-abstract=yes",
            "net_memif0,socket-abstract=no",
            "net_tap0,socket=here,socket-abstract=no",
        ] {
            assert_eq!(prepared(device).unwrap(), device);
        }
    }

    #[test]
    fn a_path_from_here_is_told_from_the_root() {
        let here = std::env::current_dir().unwrap();
        let told = prepared("net_memif0,socket=socket,socket-abstract=no,id=2").unwrap();
        let whole = format!(
            "net_memif0,socket={}/socket,socket-abstract=no,id=2",
            here.display()
        );
        assert_eq!(told, whole);
    }
}
