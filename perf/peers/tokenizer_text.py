"""English and code from this machine: documentation, then headers and Python sources, the same bytes in every run here.

    tokenizer_text.py OUTPUT BYTES_OF_EACH
"""
import os
import sys
import sysconfig


def gather(roots, endings, limit):
    """The files below `roots` that are UTF-8 text, in order of their paths, up to `limit` bytes."""
    text = bytearray()
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                if not name.endswith(endings) or os.path.islink(path) or os.path.getsize(path) > 1 << 20:
                    continue
                with open(path, "rb") as file:
                    content = file.read()
                try:
                    content.decode("utf-8")
                except UnicodeDecodeError:
                    continue
                if b"\0" in content:
                    continue
                text += content
                if len(text) >= limit:
                    return text[:limit].decode("utf-8", "ignore").encode()
    return bytes(text)


output, limit = sys.argv[1], int(sys.argv[2])
english = gather(["/usr/share/doc", "/usr/share/perl", "/usr/share/common-licenses", "/usr/share/vim"],
                 (".txt", "copyright", ".pod", "README", "NEWS", ".md", ".html", ".rst", "changelog"), limit)
code = gather(["/usr/include", sysconfig.get_paths()["stdlib"], "/usr/lib/python3"], (".h", ".hpp", ".c", ".cpp", ".py"), limit)
with open(output, "wb") as file:
    file.write(english + code)
print(f"{len(english) / 1e6:.1f} MB of documentation and {len(code) / 1e6:.1f} MB of code")
