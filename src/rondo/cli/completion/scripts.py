"""Completion scripts of the shells. Each calls `rondo completion --words WORD ...` with the words before the cursor.

An answer is a line `VALUE<tab>DESCRIPTION`; `@files` stands for file names.
"""

BASH = r"""# bash completion of rondo: eval "$(rondo completion bash)" in ~/.bashrc
_rondo() {
  local -a typed
  local line=${COMP_LINE:0:COMP_POINT} current prefix="" value
  read -ra typed <<< "$line"
  [[ $line == *[[:blank:]] ]] && typed+=("")
  current=${typed[-1]}
  # Readline splits words at = and :, so replies begin after the last one.
  [[ $current == *[=:]* ]] && prefix=${current%"${current##*[=:]}"}
  COMPREPLY=()
  while IFS=$'\t' read -r value _; do
    if [[ $value == @files ]]; then
      compopt -o filenames
      while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "${current#"$prefix"}")
    else
      COMPREPLY+=("${value#"$prefix"}")
    fi
  done < <(command "${typed[0]}" completion --words "${typed[@]:1}" 2> /dev/null)
}
complete -F _rondo rondo
"""

ZSH = r"""#compdef rondo
# zsh completion of rondo: source <(rondo completion zsh) in ~/.zshrc, after compinit
_rondo() {
  local -a found
  local value text
  local -i files=0
  while IFS=$'\t' read -r value text; do
    if [[ $value == @files ]]; then files=1; else found+=("${value//:/\\:}:$text"); fi
  done < <(command ${words[1]} completion --words "${(@)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)
  (( $#found )) && _describe -V rondo found
  (( files )) && { [[ $PREFIX == *=* ]] && compset -P '*='; _files }
}
compdef _rondo rondo
"""

FISH = r"""# fish completion of rondo: rondo completion fish | source, in ~/.config/fish/config.fish
function __rondo_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    for line in (command $before[1] completion --words $before[2..] "$current" 2> /dev/null)
        if test "$line" = @files
            set -l prefix (string match -r '^-[^=]*=' -- $current)
            set -l path (string replace -r '^-[^=]*=' '' -- $current)
            for file in (__fish_complete_path $path)
                echo $prefix$file
            end
        else
            echo $line
        end
    end
end
complete -c rondo -f -a '(__rondo_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
