//! The manual's pages as rustdoc takes them.
//!
//! On a forge the pages of docs/ link each other as files. In the documentation of this crate they
//! are modules of `guide`, pictures are part of a page, and of a link to a file that the
//! documentation does not have, only the text is left. rustdoc then checks the links.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let docs = Path::new("docs");
    let pages = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("guide");
    fs::create_dir_all(&pages)?;
    println!("cargo::rerun-if-changed=build.rs");
    for entry in fs::read_dir(docs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            println!("cargo::rerun-if-changed={}", path.display());
            let name = path.file_name().expect("a file of a folder has a name");
            let page = page(&fs::read_to_string(&path)?, docs)?;
            fs::write(pages.join(name), page)?;
        }
    }
    Ok(())
}

/// The page with its links as modules. Code is left alone.
fn page(text: &str, docs: &Path) -> io::Result<String> {
    let mut page = String::with_capacity(text.len());
    // Where the prose begins: no link begins before that.
    let mut prose = 0;
    let mut is_code = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            page.push_str(line);
            prose = page.len();
            continue;
        }
        let mut rest = line;
        while let Some((before, link)) = rest.split_once("](") {
            let Some((target, after)) = link.split_once(')') else {
                break;
            };
            page.push_str(before);
            end_link(&mut page, prose, target, docs)?;
            rest = after;
        }
        page.push_str(rest);
    }
    Ok(page)
}

/// Ends the link whose text is at the end of `page`.
fn end_link(page: &mut String, prose: usize, target: &str, docs: &Path) -> io::Result<()> {
    let (file, place) = match target.split_once('#') {
        Some((file, place)) => (file, format!("#{place}")),
        None => (target, String::new()),
    };
    let picture = match file.rsplit_once('.') {
        Some((_, "png")) => Some("image/png"),
        Some((_, "svg")) => Some("image/svg+xml"),
        _ => None,
    };
    if file.is_empty() || file.contains("://") {
        page.push_str(&format!("]({target})"));
    } else if let (Some(stem), false) = (file.strip_suffix(".md"), file.contains('/')) {
        let module = match stem {
            "unsafe" => "soundness".to_owned(),
            _ => stem.replace('-', "_"),
        };
        page.push_str(&format!("](crate::guide::{module}{place})"));
    } else if let Some(kind) = picture {
        println!("cargo::rerun-if-changed={}", docs.join(file).display());
        let data = base64(&fs::read(docs.join(file))?);
        page.push_str(&format!("](data:{kind};base64,{data})"));
    } else if let Some(begin) = page[prose..].rfind('[') {
        page.remove(prose + begin);
    }
    Ok(())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            match at <= group.len() {
                true => text.push(DIGITS[(bits >> (18 - 6 * at) & 63) as usize].into()),
                false => text.push('='),
            }
        }
    }
    text
}
